#include "replica/layout.h"

#include <doctest/doctest.h>

#include "replica/schema_json.h"
#include "replica/shard_map.h"

namespace gradtap::replica {
namespace {

ParameterSpec parameter(const char* name, std::uint64_t numel) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {numel};
  spec.order = {0};
  spec.numel = numel;
  spec.group = 0;
  return spec;
}

Schema model() {
  Schema schema;
  schema.optimizer.groups.resize(1);
  schema.parameters = {parameter("a", 100'000), parameter("b", 3), parameter("none", 0), parameter("c", 65536),
                       parameter("frozen", 10)};
  schema.parameters[4].requires_grad = false;
  ParameterSpec tied = parameter("tied", 3);
  tied.alias_of = 1;
  schema.parameters.push_back(tied);
  REQUIRE(validate(schema));
  return schema;
}

Result<Layout> parsed(const char* text, const Schema& schema) {
  return parse_layout(*parse_json_object(text, ""), schema);
}

}  // namespace

TEST_CASE("a layout's id is the SHA-256 of its canonical JSON, and places are found (B1)") {
  const Schema schema = model();
  const auto layout =
      parsed(R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3]], [[2, 0], [0, 100000]]]})", schema);
  REQUIRE_MESSAGE(layout, layout.error().text());
  // hashlib.sha256(json.dumps({"buckets": ..., "dtype": "float32"}, sort_keys=True, separators=(",", ":")).encode())
  CHECK(to_hex(layout->id()) == "369a5bf84439a4389cfc3a762a1bd4105470549f56fac628fda2944489a60753");
  CHECK(layout->check_id(layout->id()));
  LayoutId other = layout->id();
  other[31] ^= 1;
  CHECK_FALSE(layout->check_id(other));
  CHECK(layout->bucket_numel(0) == 65539);
  CHECK(layout->bucket_bytes(1) == 400'000);
  CHECK(layout->locate(0, 65535).parameter == 3);
  CHECK(layout->locate(0, 65535).element == 65535);
  CHECK(layout->locate(0, 65536).parameter == 1);
  CHECK(layout->locate(0, 65538).element == 2);
  CHECK(layout->locate(1, 0).parameter == 0);  // the empty parameter before it is passed over
}

TEST_CASE("a layout that does not cover the gradient exactly once is refused, by name") {
  const Schema schema = model();
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [0, 100000]]]})", "in no bucket"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3], [1, 3], [0, 100000]]]})", "twice"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 4], [0, 100000]]]})", "another size"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3], [0, 100000], [4, 10]]]})", "no gradient"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3], [0, 100000], [5, 3]]]})", "no gradient"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3], [0, 100000], [6, 3]]]})", "does not exist"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3], [0, 100000]], []]})", "empty"},
      {R"({"dtype": "bfloat16", "buckets": []})", "not float32"},
      {R"({"dtype": "float32", "buckets": [[[3, 65536, 1]]]})", "wrong type"},
      {R"({"dtype": "float32", "buckets": [[[-3, 65536]]]})", "wrong type"},
      {R"({"dtype": "float32", "buckets": [7]})", "wrong type"},
      {R"({"dtype": "float32"})", "missing"},
  };
  for (const auto& [text, reason] : wrong) {
    CAPTURE(text);
    const auto layout = parsed(text, schema);
    REQUIRE(!layout);
    CHECK(layout.error().what.find(reason) != std::string::npos);
  }
}

TEST_CASE("shards are whole blocks, and slices map every bucket element to one place") {
  const Schema schema = model();
  CHECK_FALSE(ShardMap::cut(schema, 0));
  const auto map = ShardMap::cut(schema, 65'000);
  REQUIRE(map);
  // Blocks: a 65536 | a 34464, b 3, c 65536 | frozen 10.
  REQUIRE(map->shards().size() == 3);
  CHECK(map->shards()[0].elements == 65536);
  CHECK(map->shards()[1].elements == 34464 + 3 + 65536);
  CHECK(map->shards()[2].elements == 10);
  const auto& pieces = map->shards()[1].pieces;
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].parameter == 0);
  CHECK(pieces[0].begin == 65536);
  CHECK(pieces[0].count == 34464);
  CHECK(pieces[2].parameter == 3);
  CHECK(pieces[2].shard_offset == 34467);

  const auto layout =
      parsed(R"({"dtype": "float32", "buckets": [[[3, 65536], [1, 3]], [[2, 0], [0, 100000]]]})", schema);
  REQUIRE(layout);
  for (std::size_t bucket = 0; bucket < 2; ++bucket) {
    std::uint64_t offset = 0;
    for (const Slice& slice : map->slices(*layout, bucket)) {
      CHECK(slice.bucket_offset == offset);
      const Piece& piece = map->shards()[slice.shard].pieces[slice.piece];
      CHECK(layout->locate(bucket, offset).parameter == piece.parameter);
      CHECK(layout->locate(bucket, offset).element == piece.begin + slice.piece_offset);
      offset += slice.elements;
    }
    CHECK(offset == layout->bucket_numel(bucket));
  }
  CHECK(map->pieces_of(0).size() == 2);
  CHECK(map->pieces_of(2).empty());
  CHECK(map->pieces_of(5).empty());
  // One shard for everything with the default size.
  CHECK(ShardMap::cut(schema, kDefaultShardElements)->shards().size() == 1);
}

}  // namespace gradtap::replica
