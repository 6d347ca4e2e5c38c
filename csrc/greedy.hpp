// Greedy search over the time-expanded network.
#pragma once

#include <cstdint>
#include <vector>

#include "network.hpp"

namespace teccl {

// Sends that bring every copied chunk to all who want it. Event-driven in continuous time: whenever links fall free
// or a chunk arrives, start the (path, chunk) that most shortens the summed distance from the GPUs that still miss
// the chunk to its nearest holder, arrivals on the way included; ties and, by `noise` (a share of the gain), near
// ties go by `seed`. No send that would arrive after `deadline_us` starts while any other can, so that slow links do
// not take on what faster ones will have time for. A GPU receives a chunk at most once. Sends that serve nobody are
// dropped. Throws std::invalid_argument when some GPU cannot be reached. Roughly O(sends · paths per GPU · chunks).
std::vector<ChunkSend> greedy(const Network& network, const std::vector<DemandedChunk>& chunks, std::uint64_t seed,
                              double noise, double deadline_us);

}  // namespace teccl
