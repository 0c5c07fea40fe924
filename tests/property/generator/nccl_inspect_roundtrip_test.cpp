// From a generated fabric to a file to an inspection: without loss every all-reduce of a size that is found has the
// SHA-256 of the vector that was given to the generator; with loss no element is called present that was not delivered.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/sha256.h"
#include "dataplane/capture_file.h"
#include "generator/pcap_writer.h"
#include "tests/property/generator/fabric_case.h"
#include "tests/unit/dataplane/nccl_inspect_harness.h"

namespace gradtap::dataplane {
namespace {

namespace fabric = gradtap::testing;
using fabric::FabricCase;
using fabric::FabricRun;
using testing::CapturedFrame;

struct Totals {
  std::uint64_t found = 0;     // sizes with a proven schedule
  std::uint64_t refused = 0;   // and those without, for a reason
  std::uint64_t complete = 0;  // vectors
  std::uint64_t with_holes = 0;
};

// By way of a file, as a mirror's capture comes.
std::vector<CapturedFrame> through_file(const FabricRun& run, const std::string& path) {
  auto writer = generator::PcapWriter::create(path);
  REQUIRE(writer);
  for (const generator::HeldFrame& held : run.seen) (*writer)->frame(held.time_ns, held.bytes, held.note);
  REQUIRE((*writer)->close());
  const auto file = CaptureFile::open(path);
  REQUIRE(file);
  auto walker = file->walk();
  std::vector<CapturedFrame> frames;
  CaptureRecord record;
  while (walker->next(record).value())
    frames.push_back({{record.bytes.begin(), record.bytes.end()}, record.wire_bytes, record.time_ns});
  CHECK(frames.size() == run.seen.size());
  return frames;
}

void check_case(const FabricCase& c, const std::string& path, Totals& totals) {
  CAPTURE(c.text());
  const FabricRun run = fabric::run_case(c);
  const std::vector<CapturedFrame> frames = through_file(run, path);
  std::vector<const CapturedFrame*> pointers;
  for (const CapturedFrame& frame : frames) pointers.push_back(&frame);
  const std::uint32_t element = generator::element_bytes(c.type);
  const testing::NcclInspection inspection(pointers, {{c.elements, "of this size", element}}, false);
  REQUIRE(inspection.plan.buckets.size() == 1);
  const PlannedBucket& bucket = inspection.plan.buckets[0];
  if (!bucket.schedule) {
    CHECK(!bucket.reason.empty());
    CHECK(inspection.ops.empty());
    ++totals.refused;
    return;
  }
  ++totals.found;
  const std::vector<fabric::Knowable> known = fabric::knowable(run, c.ops);
  if (!c.loss) CHECK(inspection.ops.size() == c.ops);
  for (const AssembledOp& op : inspection.ops) {
    REQUIRE(op.index >= 1);
    CAPTURE(op.index);
    CHECK(!op.conflict);
    if (!c.loss) CHECK(op.complete);
    if (op.complete) {
      // Which of the operations it is, its bytes say: behind a hole at the beginning numbers count what was seen.
      REQUIRE(op.sha256);
      bool one = false;
      for (std::uint32_t given = 0; given < c.ops && !one; ++given)
        one = *op.sha256 == sha256(run.reduced[given]) && (c.loss || given + 1 == op.index);
      CHECK(one);
      ++totals.complete;
      continue;
    }
    ++totals.with_holes;
    if (op.index > c.ops) continue;
    const IntervalSet& most = known[op.index - 1].most;
    for (const Interval& range : op.present) CHECK(most.contains(range.begin * element, range.end * element));
  }
}

}  // namespace

TEST_CASE("NCCL inspection round trip: a generated capture's all-reduces are found with their bytes") {
  const std::string path = (std::filesystem::temp_directory_path() / "gradtap-roundtrip.pcap").string();
  Totals totals;
  for (std::uint64_t number = 0; number < 120; ++number) {
    FabricCase c = fabric::draw_case(number);
    c.loss = c.loss && number % 2 == 0;
    check_case(c, path, totals);
  }
  std::filesystem::remove(path);
  MESSAGE(totals.found << " sizes found, " << totals.refused << " refused; " << totals.complete << " vectors complete, "
                       << totals.with_holes << " with holes");
  CHECK(totals.found >= 60);
}

}  // namespace gradtap::dataplane
