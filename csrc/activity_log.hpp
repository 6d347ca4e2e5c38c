// What happened on the threadblocks, each activity with the one that held it up: the way back is the critical path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "simulate_program.hpp"

namespace teccl {

class ActivityLog {
 public:
  static constexpr std::int32_t kNone = -1;

  // `before` is the activity that activity.cause speaks of. Returns the new activity's number.
  std::int32_t add(const Activity& activity, std::int32_t before) {
    entries_.push_back({activity, before});
    return static_cast<std::int32_t>(entries_.size()) - 1;
  }

  // Back from `last` through the constraints that set each start; the transfers of one step become one activity.
  std::vector<Activity> path_to(std::int32_t last) const {
    std::vector<Activity> path;
    for (std::int32_t i = last; i != kNone; i = entries_[i].before) {
      const Activity& here = entries_[i].activity;
      if (!path.empty() && same_step(here, path.back())) {
        path.back().start_us = here.start_us;
        path.back().cause = here.cause;
      } else {
        path.push_back(here);
      }
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  // All of it, in the order in which it came to be.
  std::vector<Activity> all() const {
    std::vector<Activity> activities;
    activities.reserve(entries_.size());
    for (const Entry& entry : entries_) activities.push_back(entry.activity);
    return activities;
  }

 private:
  struct Entry {
    Activity activity;
    std::int32_t before;
  };

  static bool same_step(const Activity& a, const Activity& b) {
    return std::tie(a.gpu, a.threadblock, a.step, a.iteration) == std::tie(b.gpu, b.threadblock, b.step, b.iteration);
  }

  std::vector<Entry> entries_;
};

}  // namespace teccl
