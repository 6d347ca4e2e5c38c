#include "check_progress.hpp"

#include <algorithm>

namespace teccl {
namespace {

constexpr std::int64_t unlimited = std::int64_t{1} << 60;

}  // namespace

bool Progress::finishes(std::int64_t credits) {
  const auto blocks = static_cast<std::size_t>(wiring_.tb_count());
  credits_ = credits;
  at_.assign(wiring_.first_step.begin(), wiring_.first_step.begin() + static_cast<std::ptrdiff_t>(blocks));
  moved_.assign(blocks, 0);
  in_flight_.assign(wiring_.connection_sender.size(), 0);
  waiters_.assign(blocks, {});
  is_waiting_.assign(blocks, false);
  is_ready_.assign(blocks, false);
  order_.clear();
  ready_.clear();
  for (std::int32_t tb = wiring_.tb_count() - 1; tb >= 0; --tb) wake(tb);
  while (!ready_.empty()) {
    const std::int32_t tb = ready_.back();
    ready_.pop_back();
    is_ready_[tb] = false;
    advance(tb);
  }
  return order_.size() == wiring_.steps.size();
}

std::optional<std::int64_t> Progress::fewest_credits() {
  if (finishes(1)) return 1;
  if (!finishes(unlimited)) return std::nullopt;
  std::int64_t hangs = 1, enough = 2;
  while (!finishes(enough)) {
    hangs = enough;
    enough *= 2;
  }
  while (enough - hangs > 1) {
    const std::int64_t middle = (hangs + enough) / 2;
    (finishes(middle) ? enough : hangs) = middle;
  }
  return enough;
}

void Progress::wake(std::int32_t tb) {
  if (is_ready_[tb]) return;
  is_ready_[tb] = true;
  ready_.push_back(tb);
}

// Go as far as flags, arrivals and credits allow.
void Progress::advance(std::int32_t tb) {
  const std::int32_t end = wiring_.first_step[tb + 1];
  for (; at_[tb] < end; ++at_[tb]) {
    const std::int32_t step = at_[tb];
    const OpTraits traits = op_traits(wiring_.steps[step]->op);
    const std::int32_t flag = wiring_.waits_for[step];
    if (flag >= 0 && at_[wiring_.tb_of_step[flag]] <= flag) {
      if (!is_waiting_[tb]) waiters_[wiring_.tb_of_step[flag]].push_back(tb);
      is_waiting_[tb] = true;
      return;
    }
    if (traits.receives || traits.sends) {
      const std::int64_t left = wiring_.steps[step]->count - moved_[tb];
      std::int64_t can_move = left;
      if (traits.receives) can_move = std::min(can_move, in_flight_[wiring_.in_connection[tb]]);
      if (traits.sends) can_move = std::min(can_move, credits_ - in_flight_[wiring_.out_connection[tb]]);
      if (can_move > 0 && traits.receives) {
        in_flight_[wiring_.in_connection[tb]] -= can_move;
        wake(wiring_.connection_sender[wiring_.in_connection[tb]]);
      }
      if (can_move > 0 && traits.sends) {
        in_flight_[wiring_.out_connection[tb]] += can_move;
        wake(wiring_.connection_receiver[wiring_.out_connection[tb]]);
      }
      moved_[tb] += can_move;
      if (can_move < left) return;
    }
    moved_[tb] = 0;
    order_.push_back(step);
    release_waiters(tb, step);
  }
}

void Progress::release_waiters(std::int32_t tb, std::int32_t ended) {
  auto& waiters = waiters_[tb];
  auto released = std::partition(waiters.begin(), waiters.end(),
                                 [&](std::int32_t waiter) { return wiring_.waits_for[at_[waiter]] > ended; });
  for (auto waiter = released; waiter != waiters.end(); ++waiter) {
    is_waiting_[*waiter] = false;
    wake(*waiter);
  }
  waiters.erase(released, waiters.end());
}

// The threadblock that must move before `tb` can.
std::int32_t Progress::blocker(std::int32_t tb) const {
  const std::int32_t step = at_[tb];
  const OpTraits traits = op_traits(wiring_.steps[step]->op);
  const std::int32_t flag = wiring_.waits_for[step];
  if (flag >= 0 && at_[wiring_.tb_of_step[flag]] <= flag) return wiring_.tb_of_step[flag];
  if (traits.receives && in_flight_[wiring_.in_connection[tb]] == 0) {
    return wiring_.connection_sender[wiring_.in_connection[tb]];
  }
  return wiring_.connection_receiver[wiring_.out_connection[tb]];
}

std::string Progress::waiting(std::int32_t tb) const {
  const std::int32_t step = at_[tb];
  const OpTraits traits = op_traits(wiring_.steps[step]->op);
  const std::int32_t flag = wiring_.waits_for[step];
  const std::int32_t other = blocker(tb);
  const std::string stands =
      say(wiring_.name_of_tb(other), ", which stands at step ", at_[other] - wiring_.first_step[other]);
  if (flag >= 0 && at_[wiring_.tb_of_step[flag]] <= flag) {
    return say("waits for step ", flag - wiring_.first_step[other], " of ", stands);
  }
  if (traits.receives && in_flight_[wiring_.in_connection[tb]] == 0) return say("waits for a transfer from ", stands);
  return say("waits for a free slot to ", stands);
}

void Progress::explain(const std::string& code, Findings& findings) const {
  std::vector<std::int32_t> cycle;
  std::vector<bool> seen(at_.size(), false), listed(at_.size(), false);
  for (std::int32_t tb = 0; tb < wiring_.tb_count() && cycle.empty(); ++tb) {
    std::int32_t walker = tb;
    while (at_[walker] < wiring_.first_step[walker + 1] && !seen[walker]) {
      seen[walker] = true;
      walker = blocker(walker);
    }
    // The first walk always closes a cycle: whoever blocks is itself blocked.
    if (at_[walker] < wiring_.first_step[walker + 1]) {
      for (std::int32_t member = walker; cycle.empty() || member != walker; member = blocker(member))
        cycle.push_back(member);
    }
  }
  for (std::int32_t tb : cycle) {
    listed[tb] = true;
    findings.error(code, wiring_.place_of(at_[tb]), say(waiting(tb), " (in a cycle of ", cycle.size(), ")"));
  }
  for (std::int32_t tb = 0; tb < wiring_.tb_count(); ++tb) {
    if (!listed[tb] && at_[tb] < wiring_.first_step[tb + 1])
      findings.error(code, wiring_.place_of(at_[tb]), waiting(tb));
  }
}

}  // namespace teccl
