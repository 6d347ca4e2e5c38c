#include "greedy.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>

#include "retime.hpp"

namespace teccl {
namespace {

using Index = std::size_t;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSameTime = 1e-12;  // times that differ by this share are one instant, summed in another order

// A cheap, stateless hash to [0, 1): the same (seed, path, chunk) always draws the same number.
double draw(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15ull + a * 0xBF58476D1CE4E5B9ull + b * 0x94D049BB133111EBull;
  x ^= x >> 31; x *= 0xD6E8FEB86659FD93ull; x ^= x >> 32; x *= 0xD6E8FEB86659FD93ull; x ^= x >> 32;
  return static_cast<double>(x >> 11) * 0x1.0p-53;
}

// Chunks of one size that the same GPUs may hold share path timings and GPU-to-GPU distances.
struct SizeClass {
  std::vector<PathTiming> timing;              // per path
  std::vector<std::vector<double>> distance;   // GPU × GPU: least time to bring a chunk over, store and forward
  double slack;                                // gains below this are rounding
};

// Distances for chunks of the size of `chunk` that the same GPUs may hold.
SizeClass size_class(const Network& network, const DemandedChunk& chunk) {
  const auto n = static_cast<Index>(network.ranks);
  SizeClass size{{}, std::vector<std::vector<double>>(n, std::vector<double>(n, kNever)), 0};
  for (Index i = 0; i < n; ++i) size.distance[i][i] = 0;
  double longest = 1;
  for (const auto& path : network.paths) {
    size.timing.push_back(time_path(network, path, chunk.bytes));
    longest = std::max(longest, size.timing.back().arrival);
  }
  size.slack = 1e-12 * longest;
  for (Index p = 0; p < network.paths.size(); ++p) {
    const auto& path = network.paths[p];
    if (!chunk.may_be_at(path.src) || !chunk.may_be_at(path.dst)) continue;
    auto& d = size.distance[static_cast<Index>(path.src)][static_cast<Index>(path.dst)];
    d = std::min(d, std::max(1e-9 * longest, size.timing[p].arrival));  // a hop is one even if it takes no time
  }
  for (Index k = 0; k < n; ++k)
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < n; ++j)
        size.distance[i][j] = std::min(size.distance[i][j], size.distance[i][k] + size.distance[k][j]);
  return size;
}

class Greedy {
 public:
  Greedy(const Network& network, const std::vector<DemandedChunk>& chunks, std::uint64_t seed, double noise,
         double deadline_us)
      : network_(network), chunks_(chunks), seed_(seed), noise_(noise), deadline_(deadline_us),
        ranks_(static_cast<Index>(network.ranks)) {
    for (const auto& chunk : chunks)
      if (!sizes_.count({chunk.bytes, chunk.holders}))
        sizes_.emplace(std::make_pair(chunk.bytes, chunk.holders), size_class(network, chunk));
    for (const auto& chunk : chunks) size_of_.push_back(&sizes_.at({chunk.bytes, chunk.holders}));
    paths_from_.resize(ranks_);
    for (Index p = 0; p < network.paths.size(); ++p)
      paths_from_[static_cast<Index>(network.paths[p].src)].push_back(p);
    awaits_links_.assign(network.paths.size(), false);
    free_from_.assign(network.links.size(), 0);
    holds_.assign(chunks.size() * ranks_, false);
    promised_.assign(chunks.size() * ranks_, false);
    gain_.assign(chunks.size() * ranks_, 0);
    near_.resize(chunks.size());
    held_.resize(ranks_);
    for (Index c = 0; c < chunks.size(); ++c) begin_chunk(c);
  }

  std::vector<ChunkSend> run() {
    std::vector<bool> ready(network_.paths.size(), true);
    double now = 0;
    while (true) {
      start_what_can(now, ready);
      if (wakeups_.empty()) {
        if (deadline_ == kNever) break;
        deadline_ = kNever;  // what could not be in time comes late
        ready.assign(ready.size(), true);
        continue;
      }
      const double instant = wakeups_.top().time * (1 + kSameTime);
      while (!wakeups_.empty() && wakeups_.top().time <= instant) {
        now = wakeups_.top().time;
        wake(ready);
      }
    }
    for (Index c = 0; c < chunks_.size(); ++c)
      for (int want : chunks_[c].want)
        if (!holds_[slot(c, static_cast<Index>(want))])
          throw std::invalid_argument("GPU " + std::to_string(want) + " cannot be reached by chunk " +
                                      std::to_string(c));
    return std::move(sends_);
  }

 private:
  struct Wakeup {  // a chunk arrives at a GPU (chunk ≥ 0), or the links of a path that has something to send fall free
    double time;
    int chunk;
    Index where;  // GPU or path
    bool operator>(const Wakeup& other) const { return time > other.time; }
  };
  struct Option {
    double score;
    Index path;
    Index chunk;
    bool operator<(const Option& other) const { return score < other.score; }
  };

  Index slot(Index chunk, Index rank) const { return chunk * ranks_ + rank; }

  void begin_chunk(Index c) {
    near_[c].assign(ranks_, 0);
    for (int want : chunks_[c].want) near_[c][static_cast<Index>(want)] = kNever;
    for (int origin : chunks_[c].origin) {
      const auto rank = static_cast<Index>(origin);
      holds_[slot(c, rank)] = promised_[slot(c, rank)] = true;
      held_[rank].push_back(c);
      bring_near(c, rank);
    }
    refresh_gain(c);
  }

  // A holder (or a GPU that will be one) at `rank`: those who miss the chunk are now this close to it.
  void bring_near(Index c, Index rank) {
    for (Index g = 0; g < ranks_; ++g) near_[c][g] = std::min(near_[c][g], size_of_[c]->distance[rank][g]);
  }

  void refresh_gain(Index c) {
    for (Index v = 0; v < ranks_; ++v) {
      double gain = 0;
      if (!promised_[slot(c, v)])
        for (Index g = 0; g < ranks_; ++g) gain += std::max(0.0, near_[c][g] - size_of_[c]->distance[v][g]);
      gain_[slot(c, v)] = gain;
    }
  }

  // From when on a transfer on path p finds every link free as it comes to it.
  double free_from(Index p, const PathTiming& timing) const {
    const auto& links = network_.paths[p].links;
    double from = 0;
    for (Index k = 0; k < links.size(); ++k)
      from = std::max(from, free_from_[static_cast<Index>(links[k])] - timing.offset[k]);
    return from;
  }

  double score(Index p, Index c) const {
    const double gain = gain_[slot(c, static_cast<Index>(network_.paths[p].dst))];
    if (gain <= size_of_[c]->slack) return 0;
    return chunks_[c].weight * gain * (1 + noise_ * draw(seed_, p, c)) + 1e-9 * draw(seed_ + 1, p, c);
  }

  // The best chunk that path p could carry from `now` on, if any. A path that has a chunk to carry but not the links
  // asks to be woken when they are free for it: for every path of a link that is at another time.
  bool best_option(Index p, double now, Option& best) {
    best = {0, p, 0};
    double soonest = kNever;
    if (sizes_.size() == 1) {  // then all its chunks find the links free at the same time
      const double from = free_from(p, sizes_.begin()->second.timing[p]);
      if (from > now) {
        if (!awaits_links_[p] && !held_[static_cast<Index>(network_.paths[p].src)].empty()) {
          awaits_links_[p] = true;
          wakeups_.push({from, -1, p});
        }
        return false;
      }
    }
    for (Index c : held_[static_cast<Index>(network_.paths[p].src)]) {
      if (now + size_of_[c]->timing[p].arrival > deadline_) continue;
      const double s = score(p, c);
      if (s <= best.score) continue;
      const double from = free_from(p, size_of_[c]->timing[p]);
      if (from <= now) best = {s, p, c};
      else soonest = std::min(soonest, from);
    }
    if (best.score > 0) return true;
    if (soonest < kNever && !awaits_links_[p]) {
      awaits_links_[p] = true;
      wakeups_.push({soonest, -1, p});
    }
    return false;
  }

  void start_what_can(double now, std::vector<bool>& ready) {
    std::priority_queue<Option> options;
    Option option;
    for (Index p = 0; p < ready.size(); ++p)
      if (ready[p]) {
        ready[p] = false;
        if (best_option(p, now, option)) options.push(option);
      }
    while (!options.empty()) {
      option = options.top();
      options.pop();
      // Gains only shrink, so an option that still scores what it did is still the best.
      if (score(option.path, option.chunk) == option.score &&
          free_from(option.path, size_of_[option.chunk]->timing[option.path]) <= now) {
        start(option.path, option.chunk, now);
      }
      Option again;
      if (best_option(option.path, now, again)) options.push(again);
    }
  }

  void start(Index p, Index c, double now) {
    const auto& path = network_.paths[p];
    const auto& timing = size_of_[c]->timing[p];
    for (Index k = 0; k < path.links.size(); ++k)
      free_from_[static_cast<Index>(path.links[k])] = now + timing.offset[k] + timing.occupancy[k];
    const auto target = static_cast<Index>(path.dst);
    promised_[slot(c, target)] = true;
    bring_near(c, target);
    refresh_gain(c);
    sends_.push_back({static_cast<int>(c), static_cast<int>(p), now, now + timing.arrival});
    wakeups_.push({now + timing.arrival, static_cast<int>(c), target});
  }

  void wake(std::vector<bool>& ready) {
    const Wakeup event = wakeups_.top();
    wakeups_.pop();
    if (event.chunk < 0) {
      awaits_links_[event.where] = false;
      ready[event.where] = true;
      return;
    }
    holds_[slot(static_cast<Index>(event.chunk), event.where)] = true;
    held_[event.where].push_back(static_cast<Index>(event.chunk));
    for (Index p : paths_from_[event.where]) ready[p] = true;
  }

  const Network& network_;
  const std::vector<DemandedChunk>& chunks_;
  const std::uint64_t seed_;
  const double noise_;
  double deadline_;
  const Index ranks_;
  std::map<std::pair<double, std::vector<int>>, SizeClass> sizes_;
  std::vector<const SizeClass*> size_of_;          // per chunk
  std::vector<std::vector<Index>> paths_from_;     // per GPU
  std::vector<bool> awaits_links_;                 // per path: a wakeup is due
  std::vector<double> free_from_;                  // per link
  std::vector<bool> holds_, promised_;             // chunk × GPU
  std::vector<double> gain_;                       // chunk × GPU: what a copy there would shorten
  std::vector<std::vector<double>> near_;          // chunk, GPU: distance to the nearest holder; 0 if not wanted
  std::vector<std::vector<Index>> held_;           // per GPU, chunks in order of arrival
  std::priority_queue<Wakeup, std::vector<Wakeup>, std::greater<Wakeup>> wakeups_;
  std::vector<ChunkSend> sends_;
};

// Walk back from the GPUs that want each chunk: a send that leads to none of them is dropped.
std::vector<ChunkSend> useful(const Network& network, const std::vector<DemandedChunk>& chunks,
                              const std::vector<ChunkSend>& sends) {
  std::set<std::pair<int, int>> needed;
  for (Index c = 0; c < chunks.size(); ++c)
    for (int want : chunks[c].want) needed.emplace(static_cast<int>(c), want);
  std::vector<ChunkSend> kept;
  for (auto send = sends.rbegin(); send != sends.rend(); ++send) {
    const auto& path = network.paths[static_cast<Index>(send->path)];
    if (!needed.count({send->chunk, path.dst})) continue;
    needed.emplace(send->chunk, path.src);
    kept.push_back(*send);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace

std::vector<ChunkSend> greedy(const Network& network, const std::vector<DemandedChunk>& chunks, std::uint64_t seed,
                              double noise, double deadline_us) {
  auto sends = useful(network, chunks, Greedy(network, chunks, seed, noise, deadline_us).run());
  retime(network, chunks, sends);
  return sends;
}

}  // namespace teccl
