#include "common/event_ring.h"

namespace gradtap {

std::uint64_t EventRing::add(LogLevel level, std::string_view text, std::vector<LogField> fields) {
  Event event;
  event.wall_ms = clock_.wall_ms();
  event.level = level;
  event.text = text.substr(0, kEventTextMax);
  if (fields.size() > kEventFieldsMax) fields.erase(fields.begin() + kEventFieldsMax, fields.end());
  for (LogField& field : fields)
    if (field.value.size() > kEventTextMax) field.value.resize(kEventTextMax);
  event.fields = std::move(fields);
  const std::lock_guard lock(mutex_);
  event.seq = next_++;
  if (events_.size() == capacity_) events_.pop_front();
  events_.push_back(std::move(event));
  return next_ - 1;
}

std::vector<Event> EventRing::since(std::uint64_t from, std::size_t limit) const {
  const std::lock_guard lock(mutex_);
  std::vector<Event> found;
  const std::uint64_t oldest = next_ - events_.size();
  for (std::uint64_t seq = from > oldest ? from : oldest; seq < next_ && found.size() < limit; ++seq)
    found.push_back(events_[seq - oldest]);
  return found;
}

std::uint64_t EventRing::next_seq() const {
  const std::lock_guard lock(mutex_);
  return next_;
}

std::uint64_t EventRing::dropped() const {
  const std::lock_guard lock(mutex_);
  return next_ - 1 - events_.size();
}

}  // namespace gradtap
