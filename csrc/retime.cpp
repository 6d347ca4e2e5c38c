#include "retime.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace teccl {

void retime(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends) {
  const double never = std::numeric_limits<double>::infinity();
  const auto ranks = static_cast<std::size_t>(network.ranks);
  std::vector<double> ready(chunks.size() * ranks, never);
  auto at = [&](int chunk, int rank) -> double& {
    return ready[static_cast<std::size_t>(chunk) * ranks + static_cast<std::size_t>(rank)];
  };
  for (std::size_t c = 0; c < chunks.size(); ++c)
    for (int rank : chunks[c].origin) at(static_cast<int>(c), rank) = 0;

  std::vector<double> free_from(network.links.size(), 0);
  std::map<std::pair<int, double>, PathTiming> timings;
  for (auto& send : sends) {
    const auto& chunk = chunks[static_cast<std::size_t>(send.chunk)];
    const auto& path = network.paths[static_cast<std::size_t>(send.path)];
    auto known = timings.find({send.path, chunk.bytes});
    if (known == timings.end())
      known = timings.emplace(std::make_pair(send.path, chunk.bytes), time_path(network, path, chunk.bytes)).first;
    const PathTiming& timing = known->second;

    double start = at(send.chunk, path.src);
    if (start == never)
      throw std::invalid_argument("GPU " + std::to_string(path.src) + " sends chunk " + std::to_string(send.chunk) +
                                  " that it never receives");
    for (std::size_t k = 0; k < path.links.size(); ++k)
      start = std::max(start, free_from[static_cast<std::size_t>(path.links[k])] - timing.offset[k]);
    for (std::size_t k = 0; k < path.links.size(); ++k)
      free_from[static_cast<std::size_t>(path.links[k])] = start + timing.offset[k] + timing.occupancy[k];

    send.start_us = start;
    send.arrival_us = start + timing.arrival;
    double& there = at(send.chunk, path.dst);
    if (there == never)
      there = send.arrival_us;
    else if (chunk.reduce)
      there = std::max(there, send.arrival_us);
    else
      there = std::min(there, send.arrival_us);
  }
}

}  // namespace teccl
