// List scheduling: sends whose paths are decided, started as links fall free.
#pragma once

#include <cstdint>
#include <vector>

#include "network.hpp"

namespace teccl {

// Fills start and arrival of `sends`, in place, and puts them in the order of their starts. A send is ready when its
// chunk is at the GPU that it leaves; of those that are ready and whose links are free, the one with the highest
// `priority` starts, ties in the order given. Copies only. Throws std::invalid_argument when a chunk never comes to where
// it is to be sent from. O(sends · (log sends + paths that share a link)).
void dispatch(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
              const std::vector<double>& priority);

// The same for copies and reductions that come in an order in which data flows, with times, feasible or not, that say
// what each waits for. Of the sends that are ready the one starts after which the most time must pass until the last
// that depends on it arrives, were no link shared (Hu's level algorithm, Oper. Res. 9, 1961), less the time at which
// its chunk begins: what is long to be passed on leaves early, and at the end every link still has leaves of trees to
// feed. To that, times `load_weight`, is added how long the two links of its path that have the most to carry yet will
// take for it, so that links that have fallen behind catch up (what ends in an open shop is its busiest machine).
// `noise`, a share of a send's own time, decides near ties.
void dispatch_longest_first(const Network& network, const std::vector<DemandedChunk>& chunks,
                            std::vector<ChunkSend>& sends, double load_weight, double noise, std::uint64_t seed);

}  // namespace teccl
