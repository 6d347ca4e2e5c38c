#include "data_waits.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace teccl {

using Index = std::size_t;

DataWaits data_waits(const Network& network, const std::vector<DemandedChunk>& chunks,
                     const std::vector<ChunkSend>& sends) {
  DataWaits waits;
  waits.before.resize(sends.size());
  auto path = [&](Index i) -> const DirectPath& { return network.paths[static_cast<Index>(sends[i].path)]; };
  std::map<std::pair<int, int>, std::vector<Index>> into;  // (chunk, GPU) → sends
  for (Index i = 0; i < sends.size(); ++i) into[{sends[i].chunk, path(i).dst}].push_back(i);
  for (auto& [place, arrivals] : into)
    std::stable_sort(arrivals.begin(), arrivals.end(),
                     [&](Index a, Index b) { return sends[a].arrival_us < sends[b].arrival_us; });
  for (Index i = 0; i < sends.size(); ++i) {
    const auto& chunk = chunks[static_cast<Index>(sends[i].chunk)];
    const bool origin = std::count(chunk.origin.begin(), chunk.origin.end(), path(i).src) > 0;
    if (origin && !chunk.reduce) continue;
    const auto found = into.find({sends[i].chunk, path(i).src});
    const double start = sends[i].start_us;
    Index awaited = 0;
    if (found != into.end())
      while (awaited < found->second.size() && sends[found->second[awaited]].arrival_us <= start + slack_us(start))
        ++awaited;
    waits.supplied = waits.supplied && (origin || awaited > 0);
    if (!chunk.reduce) awaited = std::min<Index>(awaited, 1);
    for (Index n = 0; n < awaited; ++n)
      if (found->second[n] != i) waits.before[i].push_back(found->second[n]);
  }
  return waits;
}

}  // namespace teccl
