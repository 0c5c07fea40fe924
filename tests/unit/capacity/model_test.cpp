// Every expected number is worked out here by hand from what stands beside it, not taken from the program.
#include "capacity/model.h"

#include <cmath>

#include <doctest/doctest.h>

#include "capacity/plan.h"

namespace gradtap::capacity {
namespace {

const Row& row_of(const std::vector<Row>& rows, Resource resource) {
  for (const Row& row : rows)
    if (row.resource == resource) return row;
  FAIL("no such row");
  return rows.front();
}

double part_of(const Row& row, std::string_view name) {
  for (const Part& part : row.parts)
    if (part.name == name) return part.value;
  FAIL("no such part: " << name);
  return 0;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

JobShape adam(double parameters) {
  JobShape job;
  job.parameters = parameters;
  job.state = {{"param", 4}, {"exp_avg", 4}, {"exp_avg_sq", 4}};
  return job;
}

// A ring of two whose two edges show 60 GB a step: 2 edges x 2 x 1/2 x gradient, so the gradient has 30 GB and the job
// 7.5e9 parameters of 4 B. One node with one port of 400 Gbit/s, frames of 4096 B, a step each 1.5 s.
JobShape sixty_gigabytes() {
  JobShape job = adam(7.5e9);
  job.ranks = 2;
  job.mirrored_edges = 2;
  job.step_time_s = 1.5;
  job.frame = *frame_shape("roce-4096");
  job.replicas = 1;
  job.full_every_steps = 64;
  job.keep_fulls = 2;
  return job;
}

NodeShape large_node() {
  NodeShape node;
  node.memory_bytes = 256e9;
  node.disk_bytes = 8e12;
  node.cores = 32;
  node.receive_queues = 8;
  node.worker_threads = 24;
  node.mirror_ports = 1;
  node.mirror_port_bits_per_s = 400e9;
  node.link_bits_per_s = 100e9;
  node.memory_bytes_per_s = 800e9;
  node.disk_write_bytes_per_s = 40e9;
  node.object_write_bytes_per_s = 40e9;
  node.receive_s_per_frame = 100e-9;
  node.receive_s_per_byte = 0.05e-9;
  node.place_bytes_per_s = 10e9;
  node.apply_parameters_per_s = 2.5e9;
  node.digest_bytes_per_s = 15e9;
  return node;
}

}  // namespace

TEST_CASE("a node of 400 Gbit/s whose group moves 60 GB in a step") {
  const std::vector<Row> all = rows(sixty_gigabytes(), large_node(), 1, 1);

  // 60e9 B / 4096 B = 14 648 437.5 frames a step, 9 765 625 a second; 40e9 B of payload a second.
  // 9 765 625 x 100 ns = 0.976 562 5; 40e9 x 0.05 ns = 2.
  const Row& receive = row_of(all, Resource::kReceiveCores);
  CHECK(near(receive.needed, 2.9765625));
  CHECK(receive.available == 8);
  CHECK(receive.limit == 0.7);
  CHECK(receive.fits());

  // Final: half of 60 GB. 20e9 B/s / 10e9 = 2. Apply: 5e9 parameters/s / 2.5e9 = 2. Digest: 60e9 B/s / 15e9 = 4.
  const Row& workers = row_of(all, Resource::kWorkerCores);
  CHECK(near(part_of(workers, "assembly"), 2));
  CHECK(near(part_of(workers, "apply"), 2));
  CHECK(near(part_of(workers, "digest"), 4));
  CHECK(near(row_of(all, Resource::kCores).needed, 10.9765625));

  // 9 765 625 x 4158 B = 40.60546875e9; payload read 40e9; assembly 2 x 20e9; apply 5e9 x 28 B = 140e9; digest 60e9;
  // flush 2 x (30e9 + 90e9/64) / 1.5 = 41.875e9; upload the same.
  const Row& bandwidth = row_of(all, Resource::kMemoryBandwidth);
  CHECK(near(part_of(bandwidth, "card writes frames"), 40.60546875e9));
  CHECK(near(part_of(bandwidth, "checksums"), 40e9));
  CHECK(near(part_of(bandwidth, "assembly"), 40e9));
  CHECK(near(part_of(bandwidth, "apply"), 140e9));
  CHECK(near(part_of(bandwidth, "digest"), 60e9));
  CHECK(near(part_of(bandwidth, "flush"), 41.875e9));
  CHECK(near(part_of(bandwidth, "upload"), 41.875e9));
  CHECK(near(bandwidth.needed, 404.35546875e9));

  // 30 GB of log and 90 GB / 64 of full versions in 1.5 s.
  CHECK(near(row_of(all, Resource::kDiskWrite).needed, 20.9375e9));
  CHECK(near(row_of(all, Resource::kObjectWrite).needed, 20.9375e9));
  // 1.1 x (3 x 90 GB + 2 x 64 x 30 GB)
  CHECK(near(row_of(all, Resource::kDiskSpace).needed, 1.1 * (270e9 + 3840e9)));
  // 9 765 625 x (4158 + 20) B x 8
  CHECK(near(row_of(all, Resource::kMirrorPort).needed, 326.40625e9));
  CHECK(row_of(all, Resource::kMirrorPort).fits());  // 0.816 of 0.9

  // State 90 GB, window 4 x 30 GB, nothing held on one node, 2 x 90 GB / 64 being written.
  const Row& memory = row_of(all, Resource::kMemory);
  CHECK(near(part_of(memory, "state"), 90e9));
  CHECK(near(part_of(memory, "window"), 120e9));
  CHECK(part_of(memory, "hold") == 0);
  CHECK(near(memory.needed, 90e9 + 120e9 + 2.8125e9));
  CHECK(near(row_of(all, Resource::kMemoryAtAttach).needed, 180e9));

  // (30e9/10e9 + 7.5e9/2.5e9 + 90e9/15e9) / 24 = 12 / 24; + 31.40625e9 / 40e9.
  const Lag behind = lag(sixty_gigabytes(), large_node(), 1, 1);
  CHECK(near(behind.durable_s, 0.5 + 0.78515625));
  CHECK(near(behind.published_s, 0.5 + 2 * 0.78515625));
  CHECK(near(behind.durable_steps, 1.28515625 / 1.5));
}

TEST_CASE("60 GB read as what is all-reduced: the ports show twice as much of a ring of two") {
  JobShape job = sixty_gigabytes();
  job.parameters = 15e9;
  const std::vector<Row> all = rows(job, large_node(), 1, 1);
  CHECK(near(row_of(all, Resource::kReceiveCores).needed, 2 * 2.9765625));
  CHECK(near(row_of(all, Resource::kMemoryBandwidth).needed, 2 * 404.35546875e9));
  CHECK(near(row_of(all, Resource::kDiskWrite).needed, 2 * 20.9375e9));
  CHECK_FALSE(row_of(all, Resource::kMirrorPort).fits());  // 652.8 of 400 Gbit/s
}

TEST_CASE("more nodes own less; what each taps stays, or falls when the mirror is spread") {
  JobShape job = adam(8e9);
  job.ranks = 4;
  job.mirrored_edges = 4;
  job.step_time_s = 2;
  job.replicas = 2;
  CHECK(owned_share(job, 1) == 1);
  CHECK(owned_share(job, 2) == 1);
  CHECK(near(owned_share(job, 4), 0.5));
  // 10 shards on 4 nodes: 5 each. On 3 nodes 6.67, so 7 for the fullest.
  job.shards = 10;
  CHECK(near(owned_share(job, 4), 0.5));
  CHECK(near(owned_share(job, 3), 0.7));
  // Edges show 4 x 2 x 3/4 x 32 GB = 192 GB in 2 s: 96e9/1024 = 93 750 000 frames/s x 1106 B x 8.
  const std::vector<Row> each = rows(job, large_node(), 4, 0.5);
  CHECK(near(row_of(each, Resource::kMirrorPort).needed, 829.5e9));
  CHECK(row_of(each, Resource::kNodeLink).needed == 0);
  CHECK(near(part_of(row_of(each, Resource::kMemory), "state"), 48e9));
  CHECK(near(part_of(row_of(each, Resource::kMemory), "hold"), 16 * 32e9));
  CHECK(near(row_of(each, Resource::kDiskWrite).needed, (16e9 + 48e9 / 64) / 2));
  CHECK(near(row_of(each, Resource::kObjectWrite).needed, (32e9 + 96e9 / 64) / 4 / 2));

  job.tap = TapMode::kSpread;
  const std::vector<Row> spread = rows(job, large_node(), 4, 0.5);
  CHECK(near(row_of(spread, Resource::kMirrorPort).needed, 829.5e9 / 4));
  // A quarter of 32 GB is seen first here; each byte has 2 owners, of which 3/4 x 2 are elsewhere: 12 GB in 2 s.
  CHECK(near(row_of(spread, Resource::kNodeLink).needed, 8 * 12e9 / 2));
}

TEST_CASE("bounds of a node bound what it can fill") {
  JobShape job = adam(1e9);
  NodeShape node = large_node();
  node.window_bytes_max = 1e9;
  node.hold_bytes_max = 2e9;
  const std::vector<Row> all = rows(job, node, 2, 1);
  CHECK(part_of(row_of(all, Resource::kMemory), "window") == 1e9);
  CHECK(part_of(row_of(all, Resource::kMemory), "hold") == 2e9);
  // Two steps of 4 GB do not fit a window of 1 GB.
  CHECK(near(row_of(all, Resource::kWindow).needed, 8e9));
  CHECK_FALSE(row_of(all, Resource::kWindow).fits());
}

TEST_CASE("frames and what a mirror puts around them") {
  // 100 Gbit/s of frames of 1024 B: 1086 + 20 B on the wire, 11.30 million a second.
  const FrameShape frame = *frame_shape("roce-1024");
  CHECK(frame.frame_bytes == 1086);
  CHECK(frame_shape("roce-4096")->frame_bytes == 4158);
  CHECK(frame_shape("tcp-1500")->frame_bytes == 1518);
  CHECK(std::round(100e9 / 8 / (frame.frame_bytes + 20) / 1e4) == 1130);
  // A frame of 1086 B in ERSPAN II has 1136 B; a port carries 95.7 % of a full source of its own rate, in III 95.3 %.
  CHECK(frame.frame_bytes + *encapsulation_bytes("erspan2") == 1136);
  JobShape job = adam(1e9);
  job.step_time_s = 1;
  const double plain = row_of(rows(job, large_node(), 1, 1), Resource::kMirrorPort).needed;
  job.encapsulation_bytes = *encapsulation_bytes("erspan2");
  CHECK(std::round(1000 * plain / row_of(rows(job, large_node(), 1, 1), Resource::kMirrorPort).needed) == 957);
  job.encapsulation_bytes = *encapsulation_bytes("erspan3");
  CHECK(std::round(1000 * plain / row_of(rows(job, large_node(), 1, 1), Resource::kMirrorPort).needed) == 953);
  CHECK_FALSE(frame_shape("roce-1023"));
  CHECK_FALSE(encapsulation_bytes("ERSPAN"));
  CHECK_FALSE(dtype_bytes("int8"));
  CHECK(*dtype_bytes("bfloat16") == 2);
}

TEST_CASE("what is not known is not judged") {
  JobShape job = sixty_gigabytes();
  job.step_time_s = 0;
  for (const Row& row : rows(job, large_node(), 1, 1)) {
    const bool timeless = row.resource == Resource::kMemory || row.resource == Resource::kMemoryAtAttach ||
                          row.resource == Resource::kDiskSpace || row.resource == Resource::kNodeLink;
    CAPTURE(resource_name(row.resource));
    CHECK(row.judged() == timeless);
  }
  const auto plan = plan_capacity(sixty_gigabytes(), NodeShape{}, 1);
  REQUIRE(plan);
  CHECK(plan->fits);
  CHECK_FALSE(plan->binding);
  CHECK(verdict(*plan) == "fits on 1 node: nothing is judged");
  CHECK_FALSE(plan->lag.unknown.empty());
}

TEST_CASE("an impossible job is named") {
  const auto refused = [](auto change) {
    JobShape job = sixty_gigabytes();
    change(job);
    const auto plan = plan_capacity(job, large_node(), 0);
    return !plan && plan.error().code == ErrorCode::kOutOfRange;
  };
  CHECK(refused([](JobShape& job) { job.parameters = 0; }));
  CHECK(refused([](JobShape& job) { job.parameters = std::nan(""); }));
  CHECK(refused([](JobShape& job) { job.ranks = 1; }));
  CHECK(refused([](JobShape& job) { job.step_time_s = -1; }));
  CHECK(refused([](JobShape& job) { job.mirrored_edges = 0; }));
  CHECK(refused([](JobShape& job) { job.replicas = 0; }));
  CHECK(refused([](JobShape& job) { job.full_every_steps = 0; }));
  CHECK(refused([](JobShape& job) { job.state.clear(); }));
  CHECK_FALSE(refused([](JobShape&) {}));
  CHECK_FALSE(plan_capacity(sixty_gigabytes(), large_node(), kNodesMax + 1));
}

}  // namespace gradtap::capacity
