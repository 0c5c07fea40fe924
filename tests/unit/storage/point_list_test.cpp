#include "storage/point_list.h"

#include <string>

#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

struct Job {
  MemoryStore store;
  PointMaker maker{store};

  void points(LineageId lineage, StepNumber first, StepNumber last, StepNumber base) {
    for (StepNumber step = first; step <= last; ++step) maker.publish(lineage, step, {base, base});
  }
  PointListing list() const { return ok(list_points(store, maker.job)); }
  // "lineage/step", or the error's name
  std::string choose(const PointWish& wish = {}) const {
    const auto choice = choose_point(list(), wish);
    if (!choice) return std::string(error_name(choice.error().code));
    return std::to_string(choice->point.lineage) + "/" + std::to_string(choice->point.step);
  }
  std::vector<PassedOver> passed() const { return ok(choose_point(list())).passed_over; }
  void damage(const std::string& key) { store.objects.at(key)[40] ^= 1; }
  std::string side_of(LineageId lineage, StepNumber step) const {
    return ok(read_point(store, maker.job, lineage, step)).record.side.key;
  }
};

PointWish at(std::optional<LineageId> lineage, std::optional<StepNumber> step = {}) {
  PointWish wish;
  wish.lineage = lineage;
  wish.step = step;
  return wish;
}

}  // namespace

TEST_CASE("points are listed newest first, with what the record says") {
  Job job;
  job.maker.start();
  job.points(1, 3, 5, 2);
  job.maker.start(1, 4);
  job.points(2, 5, 6, 4);
  const PointListing listing = job.list();
  REQUIRE(listing.points.size() == 5);
  CHECK(listing.points[0].lineage == 2);
  CHECK(listing.points[0].step == 6);
  CHECK_FALSE(listing.points[0].superseded);
  CHECK(listing.points[2].lineage == 1);
  CHECK(listing.points[2].step == 5);
  CHECK(listing.points[2].superseded);
  for (const PointEntry& point : listing.points) {
    CHECK(point.valid);
    CHECK(point.record->canonical.step == point.step);
    CHECK(point.record_digest == sha256(job.store.objects.at(point.key)));
  }
  REQUIRE(listing.lineages.size() == 2);
  CHECK(listing.lineages[0].lineage == 2);
  PointListOptions options;
  options.lineage = 1;
  CHECK(ok(list_points(job.store, job.maker.job, options)).points.size() == 3);
  options.points_max = 2;
  CHECK(list_points(job.store, job.maker.job, options).error().code == ErrorCode::kLimitReached);
  CHECK(ok(list_points(job.store, "other")).points.empty());
}

TEST_CASE("choice: newest valid of the newest lineage, then its parent up to the fork, never beyond") {
  Job job;
  CHECK(job.choose() == "POINT_NONE");
  job.maker.start();
  CHECK(job.choose() == "POINT_NONE");
  job.points(1, 3, 6, 2);
  CHECK(job.choose() == "1/6");
  job.maker.start(1, 4);  // restored from 1/4: 1/5 and 1/6 are another future
  CHECK(job.choose() == "1/4");
  const auto passed = job.passed();
  REQUIRE(passed.size() == 3);
  CHECK(passed[0].whole_lineage);
  CHECK(passed[1].step == 6);
  CHECK(passed[1].reason.find("beyond step 4") != std::string::npos);
  job.points(2, 5, 5, 4);
  CHECK(job.choose() == "2/5");
  job.maker.start(2, 5);
  job.maker.start(3, 5);  // a child of a child without points
  CHECK(job.choose() == "2/5");
  // The zombie of lineage 1 goes on: never chosen unasked.
  job.points(1, 7, 9, 2);
  CHECK(job.choose() == "2/5");
  job.damage(point_key(job.maker.job, 2, 5));
  CHECK(job.choose() == "1/4");
  job.maker.start();  // a fresh start has no parent: its points only
  CHECK(job.choose() == "POINT_NONE");
}

TEST_CASE("a damaged point is passed over with its reason, and the next older one is chosen (I4)") {
  Job job;
  job.maker.start();
  job.points(1, 3, 8, 2);
  const std::string missing = job.side_of(1, 8), shorter = job.side_of(1, 7), unreadable = job.side_of(1, 6);
  job.store.objects.erase(missing);
  job.store.objects.at(shorter).pop_back();
  job.store.broken[unreadable] = ErrorCode::kObjectStore;
  job.damage(point_key(job.maker.job, 1, 5));
  CHECK(job.choose() == "1/4");
  const auto passed = job.passed();
  REQUIRE(passed.size() == 4);
  CHECK(passed[0].step == 8);
  CHECK(passed[0].reason.find("OBJECT_MISSING") != std::string::npos);
  CHECK(passed[0].reason.find(missing) != std::string::npos);
  CHECK(passed[1].reason.find(shorter) != std::string::npos);
  CHECK(passed[2].reason.find("OBJECT_STORE") != std::string::npos);
  CHECK(passed[3].reason.find(point_key(job.maker.job, 1, 5)) != std::string::npos);
  // A damage that only a deeper reading saw.
  PointWish wish;
  wish.refused = {{1, 4, "verification found a flipped bit"}};
  CHECK(job.choose(wish) == "1/3");
  // A record under another step's name.
  job.store.objects[point_key(job.maker.job, 1, 9)] = job.store.objects.at(point_key(job.maker.job, 1, 3));
  CHECK(job.passed()[0].reason.find("OBJECT_FOREIGN") != std::string::npos);
  // A base that all points share.
  job.store.objects.erase(job.maker.lineages.at(1).fulls.begin()->second.key);
  CHECK(job.choose() == "POINT_NONE");
}

TEST_CASE("a lost record is passed over: its objects show that a newer step was published or was about to be (I20)") {
  Job job;
  job.maker.start();
  job.points(1, 3, 6, 2);
  CHECK(job.list().unrecorded.empty());
  job.store.objects.erase(point_key(job.maker.job, 1, 6));
  const PointListing listing = job.list();
  REQUIRE(listing.unrecorded.size() == 1);
  CHECK(listing.unrecorded[0].lineage == 1);
  CHECK(listing.unrecorded[0].step == 6);
  CHECK(job.choose() == "1/5");
  REQUIRE(job.passed().size() == 1);
  CHECK(job.passed()[0].step == 6);
  CHECK(job.passed()[0].reason.find("no record") != std::string::npos);
  job.store.objects.erase(point_key(job.maker.job, 1, 4));  // older than the newest: not the question
  CHECK(job.list().unrecorded.size() == 1);
  job.maker.start(1, 5);  // a lineage that forked before the lost point does not miss it
  job.points(2, 6, 6, 5);
  CHECK(job.choose() == "2/6");
  CHECK(job.passed().empty());
}

TEST_CASE("wishes: a lineage, a step, both") {
  Job job;
  job.maker.start();
  job.points(1, 3, 6, 2);
  job.maker.start(1, 4);
  job.points(2, 5, 7, 4);
  CHECK(job.choose(at(1)) == "1/6");
  CHECK(job.choose(at(2)) == "2/7");
  CHECK(job.choose(at(3)) == "POINT_NONE");
  CHECK(job.choose(at({}, 5)) == "2/5");
  CHECK(job.choose(at({}, 4)) == "1/4");
  CHECK(job.choose(at({}, 9)) == "POINT_NONE");
  CHECK(job.choose(at(1, 6)) == "1/6");  // superseded and beyond the fork, but asked for
  CHECK(job.choose(at(2, 4)) == "POINT_NONE");
  job.damage(point_key(job.maker.job, 2, 6));
  CHECK(job.choose(at(2, 6)) == "POINT_NONE");
  CHECK(job.choose(at({}, 6)) == "POINT_NONE");  // never a neighbour, and 1/6 is beyond the fork
  const auto none = choose_point(job.list(), at(2, 6));
  CHECK(none.error().actual.find("step 6") != std::string::npos);
}

TEST_CASE("a damaged or lost claim: the records still know the parent; without any the search stops") {
  Job job;
  job.maker.start();
  job.points(1, 3, 6, 2);
  job.maker.start(1, 4);
  job.points(2, 5, 5, 4);
  job.damage(lineage_claim_key(job.maker.job, 2));
  CHECK(job.choose() == "2/5");
  job.store.objects.erase(job.side_of(2, 5));
  CHECK(job.choose() == "1/4");
  job.store.objects.erase(lineage_claim_key(job.maker.job, 2));
  CHECK(job.choose() == "1/4");
  CHECK(job.list().lineages[0].problem.code == ErrorCode::kObjectMissing);
  job.damage(point_key(job.maker.job, 2, 5));
  CHECK(job.choose() == "POINT_NONE");
  CHECK(choose_point(job.list()).error().actual.find("parent is not known") != std::string::npos);
}
