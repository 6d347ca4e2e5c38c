#include "timeline.hpp"

#include <algorithm>
#include <cmath>

namespace teccl {
namespace {

using Index = std::size_t;

// Gaps and overlaps below this come from adding doubles.
double rounding(double time) { return 1e-12 * std::max(1.0, std::abs(time)); }

}  // namespace

double Timeline::earliest(const DirectPath& path, const PathTiming& timing, double from) const {
  double start = from;
  for (bool moved = true; moved;) {
    moved = false;
    for (Index k = 0; k < path.links.size(); ++k) {
      const Busy& busy = busy_[static_cast<Index>(path.links[k])];
      double begin = start + timing.offset[k];
      const double slack = rounding(begin);
      auto next = std::upper_bound(busy.begin(), busy.end(), begin + slack,
                                   [](double time, const Interval& b) { return time < b.end; });
      while (next != busy.end() && next->begin < begin + timing.occupancy[k] - slack) {
        begin = next->end;
        start = begin - timing.offset[k];
        moved = path.links.size() > 1;
        ++next;
      }
    }
  }
  return start;
}

double Timeline::latest(const DirectPath& path, const PathTiming& timing, double until) const {
  double start = until;
  for (bool moved = true; moved;) {
    moved = false;
    for (Index k = 0; k < path.links.size(); ++k) {
      const Busy& busy = busy_[static_cast<Index>(path.links[k])];
      double end = start + timing.offset[k] + timing.occupancy[k];
      const double slack = rounding(end);
      auto after = std::lower_bound(busy.begin(), busy.end(), end - slack,
                                    [](const Interval& b, double time) { return b.begin < time; });
      while (after != busy.begin() && std::prev(after)->end > end - timing.occupancy[k] + slack) {
        --after;
        end = after->begin;
        start = end - timing.occupancy[k] - timing.offset[k];
        moved = path.links.size() > 1;
      }
    }
  }
  return start;
}

void Timeline::add(const DirectPath& path, const PathTiming& timing, double start) {
  for (Index k = 0; k < path.links.size(); ++k) {
    if (timing.occupancy[k] <= 0) continue;
    Busy& busy = busy_[static_cast<Index>(path.links[k])];
    Interval added{start + timing.offset[k], start + timing.offset[k] + timing.occupancy[k]};
    const double slack = rounding(added.end);
    auto first = std::lower_bound(busy.begin(), busy.end(), added.begin - slack,
                                  [](const Interval& b, double time) { return b.end < time; });
    auto last = first;
    while (last != busy.end() && last->begin <= added.end + slack) {
      added.begin = std::min(added.begin, last->begin);
      added.end = std::max(added.end, last->end);
      ++last;
    }
    if (first == last) {
      busy.insert(first, added);
    } else {
      *first = added;
      busy.erase(first + 1, last);
    }
  }
}

void Timeline::remove(const DirectPath& path, const PathTiming& timing, double start) {
  for (Index k = 0; k < path.links.size(); ++k) {
    if (timing.occupancy[k] <= 0) continue;
    Busy& busy = busy_[static_cast<Index>(path.links[k])];
    const double begin = start + timing.offset[k], end = begin + timing.occupancy[k];
    const double slack = rounding(end);
    auto holder = std::upper_bound(busy.begin(), busy.end(), begin + slack,
                                   [](double time, const Interval& b) { return time < b.end; });
    if (holder == busy.end()) continue;
    const Interval before{holder->begin, begin}, after{end, holder->end};
    const bool left = before.end - before.begin > 4 * slack, right = after.end - after.begin > 4 * slack;
    if (left && right) {
      *holder = after;
      busy.insert(holder, before);
    } else if (left || right) {
      *holder = left ? before : after;
    } else {
      busy.erase(holder);
    }
  }
}

}  // namespace teccl
