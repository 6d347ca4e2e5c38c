#include "justify.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "data_waits.hpp"
#include "path_timings.hpp"
#include "timeline.hpp"

namespace teccl {
namespace {

using Index = std::size_t;
constexpr double kWorthAPass = 1e-5;  // a gain that makes another pass worth its time

class Justifier {
 public:
  Justifier(const Network& network, const std::vector<DemandedChunk>& chunks, const std::vector<ChunkSend>& sends)
      : network_(network), timings_(network, chunks, sends), before_(data_waits(network, chunks, sends).before),
        after_(sends.size()), order_(sends.size()) {
    for (Index i = 0; i < sends.size(); ++i) {
      paths_.push_back(&network.paths[static_cast<Index>(sends[i].path)]);
      start_.push_back(sends[i].start_us);
      for (Index b : before_[i]) after_[b].push_back(i);
    }
    std::iota(order_.begin(), order_.end(), Index{0});
  }

  double finish() const {
    double last = 0;
    for (Index i = 0; i < start_.size(); ++i) last = std::max(last, arrival(i));
    return last;
  }

  void move_early() {
    std::stable_sort(order_.begin(), order_.end(), [&](Index a, Index b) { return start_[a] < start_[b]; });
    Timeline timeline(network_.links.size());
    for (Index i : order_) {
      double from = 0;
      for (Index first : before_[i]) from = std::max(from, arrival(first));
      start_[i] = timeline.earliest(*paths_[i], timings_.of(i), from);
      timeline.add(*paths_[i], timings_.of(i), start_[i]);
    }
  }

  // Late, then early, until the finish stays. `shake` is added to the keys of the first order, per send.
  double descend(const std::vector<double>& shake) {
    double best = finish();
    std::vector<double> found = start_;
    for (int pass = 0, idle = 0; idle < 2; ++pass) {
      move_late(pass == 0 ? shake : none_);
      move_early();
      const double now = finish();
      idle = now < best * (1 - kWorthAPass) ? 0 : idle + 1;
      if (now < best) {
        best = now;
        found = start_;
      }
    }
    start_ = found;
    return best;
  }

  const std::vector<double>& starts() const { return start_; }
  void set_starts(const std::vector<double>& starts) { start_ = starts; }
  double arrival(Index i) const { return start_[i] + timings_.of(i).arrival; }

 private:
  void move_late(const std::vector<double>& shake) {
    const double end = finish();
    std::vector<double> key(start_.size());
    for (Index i = 0; i < key.size(); ++i) key[i] = arrival(i) + (shake.empty() ? 0 : shake[i]);
    // Whatever a send feeds comes before it.
    if (!shake.empty())
      for (auto i = order_.rbegin(); i != order_.rend(); ++i)
        for (Index next : after_[*i]) key[*i] = std::min(key[*i], key[next]);
    std::reverse(order_.begin(), order_.end());
    std::stable_sort(order_.begin(), order_.end(), [&](Index a, Index b) { return key[a] > key[b]; });
    Timeline timeline(network_.links.size());
    for (Index i : order_) {
      const auto& timing = timings_.of(i);
      double until = end - timing.arrival;
      for (Index next : after_[i]) until = std::min(until, start_[next] - timing.arrival);
      start_[i] = timeline.latest(*paths_[i], timing, until);
      timeline.add(*paths_[i], timing, start_[i]);
    }
    std::reverse(order_.begin(), order_.end());
  }

  const Network& network_;
  const PathTimings timings_;
  std::vector<std::vector<Index>> before_, after_;
  std::vector<Index> order_;  // always one in which data flows forwards
  std::vector<const DirectPath*> paths_;
  std::vector<double> start_;
  const std::vector<double> none_;
};

}  // namespace

double justify(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
               bool shared, int rounds, double noise, std::uint64_t seed) {
  Justifier justifier(network, chunks, sends);
  if (shared) justifier.move_early();
  double best = rounds < 0 ? justifier.finish() : justifier.descend({});
  std::vector<double> found = justifier.starts();
  std::mt19937_64 random(seed);
  std::vector<double> shake(sends.size());
  for (int round = 0; round < rounds; ++round) {
    justifier.set_starts(found);
    for (double& s : shake) s = noise * best * static_cast<double>(random() >> 11) * 0x1.0p-53;
    const double finish = justifier.descend(shake);
    if (finish < best) {
      best = finish;
      found = justifier.starts();
    }
  }
  justifier.set_starts(found);
  for (Index i = 0; i < sends.size(); ++i) {
    sends[i].start_us = found[i];
    sends[i].arrival_us = justifier.arrival(i);
  }
  return best;
}

}  // namespace teccl
