// The body of POST messages, and the batch of side entries that it becomes on its way to a peer.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "actors/message_batch.h"
#include "actors/side_batch.h"
#include "replica/json_fields.h"
#include "replica/schema_json.h"
#include "schema/record_codec.h"

using namespace gradtap;
using namespace gradtap::actors;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

replica::Schema small_model() {
  replica::Schema schema;
  for (const char* name : {"a", "b", "c"}) {
    replica::ParameterSpec parameter;
    parameter.name = name;
    parameter.shape = {3};
    parameter.order = {0};
    parameter.numel = 3;
    parameter.group = 0;
    schema.parameters.push_back(parameter);
  }
  schema.optimizer.type = replica::OptimizerClass::kAdamW;
  schema.optimizer.kinds = {replica::StateKind::kExpAvg, replica::StateKind::kExpAvgSq};
  schema.optimizer.groups.resize(1);
  return schema;
}

// Entries of a peer: bytes that are read are the only ones that are written for them.
void side_batch(ByteSpan bytes) {
  const auto entries = decode_side_batch(bytes);
  if (!entries) return require(!entries.error().where.empty());
  const auto again = encode_side_batch(*entries);
  require(again.size() == bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()));
}

void messages(std::string_view body, std::uint32_t rank) {
  static const replica::Schema schema = small_model();
  static const JobId job{};
  Session session;
  session.rank = rank;
  session.lineage = 3;
  MessageLimits limits;
  limits.batch_lines_max = 4;
  limits.batch_bytes_max = 3000;
  const auto lines = read_message_batch(body, session, job, schema, limits);
  if (!lines) return require(!lines.error().what.empty());
  require(lines->size() <= limits.batch_lines_max && body.size() <= limits.batch_bytes_max);
  std::vector<storage::SideEntry> entries;
  for (const BatchedMessage& line : *lines) {
    require(rank == 0 || (!line.step && !line.notice));
    if (line.entry) entries.push_back(*line.entry);
    if (line.layout) {
      // What is stored is the layout, whatever else the message said.
      const auto& stored = line.entry->bytes;
      const auto json = replica::parse_json_object({reinterpret_cast<const char*>(stored.data()), stored.size()}, "x");
      require(json.has_value());
      const auto layout = replica::parse_layout(*json, schema);
      require(layout && layout->id() == line.layout->id());
    } else if (line.entry) {
      const auto record = schema::decode_step(line.entry->bytes);
      require(record && record->seq == line.seq && record->rank == rank && record->lineage == 3);
      require(!line.step || line.step->step == record->step);
    }
  }
  // A peer takes them.
  const auto sent = decode_side_batch(encode_side_batch(entries));
  require(sent && sent->size() == entries.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes(data + 1, size - 1);
  if (data[0] % 4 == 3)
    side_batch(bytes);
  else
    messages({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, data[0] % 4 == 2 ? 1 : 0);
  return 0;
}
