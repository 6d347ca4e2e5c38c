// Faults injected into a run: legal orders of events that a right program survives and a racy one need not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace teccl {

struct Injection {
  bool shuffle = false;      // threadblocks are visited in a random order, one transfer at a time
  bool delay = false;        // a threadblock pauses, at random, for a random number of rounds
  bool adversarial = false;  // only the first in a ranking moves; at random the leader falls to the end and starves
  bool reorder = false;      // a message that has come is shown late, so that connections overtake one another
  std::uint64_t seed = 0;

  bool any() const { return shuffle || delay || adversarial || reorder; }
};

// What the injection does to one rank. Deterministic in the seed and the calls, apart from the order in which other
// ranks' messages come.
class Mischief {
 public:
  Mischief(const Injection& injection, int rank, std::size_t threadblocks);

  // The threadblocks to visit in the next round, in order.
  const std::vector<std::size_t>& round();
  // Whether `tb` may make a transfer in this round; a receiving one must also be shown its message.
  bool lets(std::size_t tb, bool receives) const;
  // `tb` has made a transfer; whether the round is over with it.
  bool moved(std::size_t tb);

 private:
  void starve_last();
  bool chance(std::uint64_t one_in) { return random_() % one_in == 0; }
  std::int64_t rounds(std::int64_t most) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most)) + 1; }

  Injection injection_;
  std::mt19937_64 random_;
  std::int64_t now_ = 0;
  std::vector<std::size_t> ranking_, visits_;
  std::vector<std::int64_t> paused_until_, withheld_until_;
};

}  // namespace teccl
