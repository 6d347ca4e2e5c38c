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
constexpr double kLeastHop = 1e-6;  // µs: a hop counts as distance even where α and size are zero

// A cheap, stateless hash to [0, 1): the same (seed, path, chunk) always draws the same number.
double draw(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15ull + a * 0xBF58476D1CE4E5B9ull + b * 0x94D049BB133111EBull;
  x ^= x >> 31; x *= 0xD6E8FEB86659FD93ull; x ^= x >> 32; x *= 0xD6E8FEB86659FD93ull; x ^= x >> 32;
  return static_cast<double>(x >> 11) * 0x1.0p-53;
}

// Chunks of one size share path timings and GPU-to-GPU distances.
struct SizeClass {
  std::vector<PathTiming> timing;              // per path
  std::vector<std::vector<double>> distance;   // GPU × GPU: least time to bring a chunk over, store and forward
};

SizeClass size_class(const Network& network, double bytes) {
  const auto n = static_cast<Index>(network.ranks);
  SizeClass size{{}, std::vector<std::vector<double>>(n, std::vector<double>(n, kNever))};
  for (Index i = 0; i < n; ++i) size.distance[i][i] = 0;
  for (const auto& path : network.paths) {
    size.timing.push_back(time_path(network, path, bytes));
    auto& d = size.distance[static_cast<Index>(path.src)][static_cast<Index>(path.dst)];
    d = std::min(d, std::max(kLeastHop, size.timing.back().arrival));
  }
  for (Index k = 0; k < n; ++k)
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < n; ++j)
        size.distance[i][j] = std::min(size.distance[i][j], size.distance[i][k] + size.distance[k][j]);
  return size;
}

class Greedy {
 public:
  Greedy(const Network& network, const std::vector<DemandedChunk>& chunks, std::uint64_t seed, double noise)
      : network_(network), chunks_(chunks), seed_(seed), noise_(noise), ranks_(static_cast<Index>(network.ranks)) {
    for (const auto& chunk : chunks)
      if (!sizes_.count(chunk.bytes)) sizes_.emplace(chunk.bytes, size_class(network, chunk.bytes));
    for (const auto& chunk : chunks) size_of_.push_back(&sizes_.at(chunk.bytes));
    paths_from_.resize(ranks_);
    paths_over_.resize(network.links.size());
    for (Index p = 0; p < network.paths.size(); ++p) {
      paths_from_[static_cast<Index>(network.paths[p].src)].push_back(p);
      for (int link : network.paths[p].links) paths_over_[static_cast<Index>(link)].push_back(p);
    }
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
      if (wakeups_.empty()) break;
      now = wakeups_.top().time;
      while (!wakeups_.empty() && wakeups_.top().time <= now) wake(ready);
    }
    for (Index c = 0; c < chunks_.size(); ++c)
      for (int want : chunks_[c].want)
        if (!holds_[slot(c, static_cast<Index>(want))])
          throw std::invalid_argument("GPU " + std::to_string(want) + " cannot be reached by chunk " +
                                      std::to_string(c));
    return std::move(sends_);
  }

 private:
  struct Wakeup {  // a chunk arrives at a GPU (chunk ≥ 0), or a path's links fall free
    double time;
    int chunk;
    Index where;
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
    for (int want : chunks_[c].want) near_[c][static_cast<Index>(want)] = kFar;
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

  bool links_free(Index p, const PathTiming& timing, double now) const {
    const auto& links = network_.paths[p].links;
    for (Index k = 0; k < links.size(); ++k)
      if (free_from_[static_cast<Index>(links[k])] > now + timing.offset[k] + kSlack) return false;
    return true;
  }

  double score(Index p, Index c) const {
    const double gain = gain_[slot(c, static_cast<Index>(network_.paths[p].dst))];
    if (gain <= kSlack) return 0;
    return gain * (1 + noise_ * draw(seed_, p, c)) + 1e-9 * draw(seed_ + 1, p, c);
  }

  // The best chunk that path p could carry from `now` on, if any.
  bool best_option(Index p, double now, Option& best) const {
    best = {0, p, 0};
    for (Index c : held_[static_cast<Index>(network_.paths[p].src)]) {
      const double s = score(p, c);
      if (s > best.score && links_free(p, size_of_[c]->timing[p], now)) best = {s, p, c};
    }
    return best.score > 0;
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
          links_free(option.path, size_of_[option.chunk]->timing[option.path], now)) {
        start(option.path, option.chunk, now);
      }
      Option again;
      if (best_option(option.path, now, again)) options.push(again);
    }
  }

  void start(Index p, Index c, double now) {
    const auto& path = network_.paths[p];
    const auto& timing = size_of_[c]->timing[p];
    for (Index k = 0; k < path.links.size(); ++k) {
      const double until = now + timing.offset[k] + timing.occupancy[k];
      free_from_[static_cast<Index>(path.links[k])] = until;
      wakeups_.push({until - timing.offset[k], -1, static_cast<Index>(path.links[k])});
    }
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
      for (Index p : paths_over_[event.where]) ready[p] = true;
      return;
    }
    holds_[slot(static_cast<Index>(event.chunk), event.where)] = true;
    held_[event.where].push_back(static_cast<Index>(event.chunk));
    for (Index p : paths_from_[event.where]) ready[p] = true;
  }

  static constexpr double kSlack = 1e-9;
  static constexpr double kFar = 1e18;

  const Network& network_;
  const std::vector<DemandedChunk>& chunks_;
  const std::uint64_t seed_;
  const double noise_;
  const Index ranks_;
  std::map<double, SizeClass> sizes_;
  std::vector<const SizeClass*> size_of_;          // per chunk
  std::vector<std::vector<Index>> paths_from_;     // per GPU
  std::vector<std::vector<Index>> paths_over_;     // per link
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
                              double noise) {
  auto sends = useful(network, chunks, Greedy(network, chunks, seed, noise).run());
  retime(network, chunks, sends);
  return sends;
}

}  // namespace teccl
