// Whether every threadblock finishes when each connection holds at most so many transfers.
//
// Every chunk is its own transfer: the worst case, which large sizes reach (merging transfers never blocks what
// finishes unmerged). Moving a transfer never takes away another's chance to move, so one greedy run decides.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "check_wiring.hpp"

namespace teccl {

class Progress {
 public:
  explicit Progress(const Wiring& wiring) : wiring_(wiring) {}

  // Whether all finishes with `credits` per connection. Linear in the transfers, bounded by the step counts.
  bool finishes(std::int64_t credits);

  // Fewest credits that finish, or nothing when no number does.
  std::optional<std::int64_t> fewest_credits();

  // After finishes(): the steps in the order in which they ended.
  const std::vector<std::int32_t>& order() const { return order_; }

  // After finishes() said no: every blocked threadblock and what it waits for, a cycle of them first.
  void explain(const std::string& code, Findings& findings) const;

 private:
  void advance(std::int32_t tb);
  void wake(std::int32_t tb);
  void release_waiters(std::int32_t tb, std::int32_t ended);
  std::int32_t blocker(std::int32_t tb) const;
  std::string waiting(std::int32_t tb) const;

  const Wiring& wiring_;
  std::int64_t credits_ = 0;
  std::vector<std::int32_t> at_;                    // the step where each threadblock stands
  std::vector<std::int64_t> moved_;                 // transfers of that step that are done
  std::vector<std::int64_t> in_flight_;             // per connection
  std::vector<std::vector<std::int32_t>> waiters_;  // threadblocks that wait for a flag of each threadblock
  std::vector<bool> is_waiting_;
  std::vector<std::int32_t> ready_;
  std::vector<bool> is_ready_;
  std::vector<std::int32_t> order_;
};

}  // namespace teccl
