#include "common/metrics.h"

#include <algorithm>

namespace gradtap {

Counter& MetricsRegistry::counter(std::string_view name) {
  const std::lock_guard lock(mutex_);
  for (Cell& cell : cells_)
    if (cell.name == name) return cell.counter;
  Cell& cell = cells_.emplace_back();
  cell.name = name;
  return cell.counter;
}

std::vector<MetricValue> MetricsRegistry::snapshot() const {
  std::vector<MetricValue> values;
  {
    const std::lock_guard lock(mutex_);
    values.reserve(cells_.size());
    for (const Cell& cell : cells_) values.push_back({cell.name, cell.counter.read()});
  }
  std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return values;
}

}  // namespace gradtap
