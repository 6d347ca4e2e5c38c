#include "injection.hpp"

#include <algorithm>
#include <numeric>

namespace teccl {

Mischief::Mischief(const Injection& injection, int rank, std::size_t threadblocks)
    : injection_(injection),
      random_(injection.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(rank)),
      ranking_(threadblocks),
      paused_until_(threadblocks),
      withheld_until_(threadblocks) {
  std::iota(ranking_.begin(), ranking_.end(), std::size_t{0});
  if (injection_.adversarial) {
    std::shuffle(ranking_.begin(), ranking_.end(), random_);
    starve_last();
  }
  for (std::size_t tb = 0; tb < threadblocks; ++tb) {
    if (injection_.delay && chance(2)) paused_until_[tb] = rounds(32);
    if (injection_.reorder) withheld_until_[tb] = rounds(16);
  }
}

const std::vector<std::size_t>& Mischief::round() {
  ++now_;
  if (!injection_.shuffle || injection_.adversarial) return ranking_;
  std::shuffle(ranking_.begin(), ranking_.end(), random_);
  visits_.clear();
  for (std::size_t tb : ranking_)
    if (chance(2)) visits_.push_back(tb);
  return visits_;
}

bool Mischief::lets(std::size_t tb, bool receives) const {
  return now_ >= paused_until_[tb] && (!receives || now_ >= withheld_until_[tb]);
}

void Mischief::starve_last() {
  if (ranking_.size() > 1) paused_until_[ranking_.back()] = now_ + rounds(256);
}

bool Mischief::moved(std::size_t tb) {
  // Mostly short pauses, now and then one that is longer than whole programs.
  if (injection_.delay && chance(4)) paused_until_[tb] = now_ + rounds(chance(16) ? 200 : 16);
  if (injection_.reorder) withheld_until_[tb] = now_ + rounds(16);
  // Random priorities that rarely change meet a rare order sooner than a random walk does (Burckhardt et al., A
  // Randomized Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS 2010).
  if (injection_.adversarial && chance(8)) {
    std::rotate(ranking_.begin(), ranking_.begin() + 1, ranking_.end());
    starve_last();
  }
  return injection_.adversarial;
}

}  // namespace teccl
