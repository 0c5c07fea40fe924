// KillPoints: named moments inside a commit at which a test, or an operator's drill, ends the process.
//
// The store calls reached(name); the default does nothing. EnvironmentKillPoints sends SIGKILL to its own process when
// GRADTAP_KILL_POINT is "name" or "name:n" (n-th time, from 1). Names: store.after_stage, store.after_ingest,
// store.after_mark, store.retain.after_mark (on the store's owner thread); point.after_upload (objects of a point are
// up, its record is not), point.after_link (the record's name exists, nothing is announced), point.after_announce (on
// whichever thread publishes); epoch.after_create (an epoch exists, nobody was told); handoff.after_version (a new
// owner has a version in memory), handoff.before_release (an old owner may let go), handoff.after_release (the keeper
// has deleted what it held). reached() may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradtap::storage {

inline constexpr std::string_view kAfterStage = "store.after_stage";
inline constexpr std::string_view kAfterIngest = "store.after_ingest";
inline constexpr std::string_view kAfterMark = "store.after_mark";
inline constexpr std::string_view kRetainAfterMark = "store.retain.after_mark";
inline constexpr std::string_view kPointAfterUpload = "point.after_upload";
inline constexpr std::string_view kPointAfterLink = "point.after_link";
inline constexpr std::string_view kPointAfterAnnounce = "point.after_announce";
inline constexpr std::string_view kEpochAfterCreate = "epoch.after_create";
inline constexpr std::string_view kHandoffAfterVersion = "handoff.after_version";
inline constexpr std::string_view kHandoffBeforeRelease = "handoff.before_release";
inline constexpr std::string_view kHandoffAfterRelease = "handoff.after_release";

class KillPoints {
 public:
  virtual ~KillPoints() = default;
  virtual void reached(std::string_view name) = 0;
};

class EnvironmentKillPoints final : public KillPoints {
 public:
  EnvironmentKillPoints();  // reads GRADTAP_KILL_POINT
  void reached(std::string_view name) override;

 private:
  std::string name_;
  std::atomic<std::uint64_t> countdown_ = 0;
};

}  // namespace gradtap::storage
