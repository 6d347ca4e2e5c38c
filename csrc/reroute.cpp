#include "reroute.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "data_waits.hpp"
#include "timeline.hpp"

namespace teccl {
namespace {

using Index = std::size_t;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSharpness = 40;                   // of the prices of loaded links
constexpr double kPriceWeights[] = {0, 0, 0.3, 3};  // price against arrival; the moves draw one
constexpr double kLateShare = 0.8;                  // of the first chunks torn out are late
constexpr int kMostCompanions = 3;
constexpr double kRegrowShare = 0.5;

// A send of one chunk and what it waits for: places in the chunk's own list, all before it.
struct Hop {
  Index path;
  double start;
  std::vector<Index> before;
};

struct Route {
  std::vector<Hop> hops;
  double finish = 0;
};

constexpr Index kNone = static_cast<Index>(-1);

// Prim's rule: what is the best way to each GPU that the tree does not have yet?
struct Frontier {
  explicit Frontier(Index ranks)
      : key(ranks, kNever), start(ranks, 0), by(ranks, kNone), done(ranks, false) {}

  void offer(Index rank, double its_key, double its_start, Index path) {
    if (its_key >= key[rank]) return;
    key[rank] = its_key;
    start[rank] = its_start;
    by[rank] = path;
  }

  // The best GPU whose gap is still there, kNone if there is none. `shifted(path, start)` says by how much a start
  // has moved since; `direction` is −1 where it moves towards the past.
  template <typename Shifted>
  Index nearest(Shifted shifted, double direction = 1) {
    while (true) {
      Index best = kNone;
      for (Index v = 0; v < key.size(); ++v)
        if (!done[v] && by[v] != kNone && (best == kNone || key[v] < key[best])) best = v;
      if (best == kNone) return kNone;
      const double shift = shifted(by[best], start[best]);
      if (shift <= slack_us(std::abs(start[best]))) return best;
      key[best] += shift;
      start[best] += direction * shift;
    }
  }

  std::vector<double> key, start;
  std::vector<Index> by;  // paths
  std::vector<bool> done;
};

class Rerouter {
 public:
  Rerouter(const Network& network, const std::vector<DemandedChunk>& chunks, const std::vector<ChunkSend>& sends,
           const RerouteOptions& options)
      : network_(network), chunks_(chunks), options_(options), random_(options.seed),
        ranks_(static_cast<Index>(network.ranks)), from_(ranks_), into_(ranks_), timeline_(network.links.size()),
        load_(network.links.size(), 0), routes_(chunks.size()) {
    for (Index p = 0; p < network.paths.size(); ++p) {
      from_[static_cast<Index>(network.paths[p].src)].push_back(p);
      into_[static_cast<Index>(network.paths[p].dst)].push_back(p);
    }
    for (const auto& chunk : chunks) {
      auto [found, isnew] = timings_.try_emplace(chunk.bytes);
      if (isnew)
        for (const auto& path : network.paths) found->second.push_back(time_path(network, path, chunk.bytes));
      timing_of_.push_back(&found->second);
    }
    const DataWaits waits = data_waits(network, chunks, sends);
    std::vector<Index> place(sends.size());
    for (Index i = 0; i < sends.size(); ++i) {
      Route& route = routes_[static_cast<Index>(sends[i].chunk)];
      place[i] = route.hops.size();
      Hop hop{static_cast<Index>(sends[i].path), sends[i].start_us, {}};
      for (Index before : waits.before[i]) hop.before.push_back(place[before]);
      route.hops.push_back(hop);
      route.finish = std::max(route.finish, sends[i].arrival_us);
    }
    for (Index c = 0; c < routes_.size(); ++c) occupy(c, routes_[c], true);
    moving_ = 0;
    for (const auto& route : routes_) moving_ += !route.hops.empty();
  }

  double improve() {
    double best = finish();
    std::vector<Route> found = routes_;
    if (moving_ == 0) return best;
    for (int move = 0; move < options_.moves && best > options_.target_us; ++move) {
      const std::vector<Index> torn = choose();
      double before = 0, after = 0;
      std::vector<Route> old;
      for (Index c : torn) {
        before += lateness(routes_[c]);
        occupy(c, routes_[c], false);
        old.push_back(std::move(routes_[c]));
      }
      for (Index i = 0; i < torn.size(); ++i) {
        const Index c = torn[i];
        if (options_.regrow && uniform() < kRegrowShare) routes_[c] = grown(c);
        if (routes_[c].hops.empty()) routes_[c] = put_back(c, old[i]);
        after += lateness(routes_[c]);
      }
      if (after > before) {
        for (Index c : torn) occupy(c, routes_[c], false);
        for (Index i = 0; i < torn.size(); ++i) {
          routes_[torn[i]] = std::move(old[i]);
          occupy(torn[i], routes_[torn[i]], true);
        }
      } else if (after < before) {
        const double now = finish();
        if (now < best * (1 - 1e-12)) {
          best = now;
          found = routes_;
        }
      }
    }
    routes_ = std::move(found);
    return best;
  }

  std::vector<ChunkSend> sends() const {
    std::vector<ChunkSend> result;
    for (Index c = 0; c < routes_.size(); ++c)
      for (const auto& hop : routes_[c].hops)
        result.push_back({static_cast<int>(c), static_cast<int>(hop.path), hop.start,
                          hop.start + timing(c, hop.path).arrival});
    std::stable_sort(result.begin(), result.end(),
                     [](const ChunkSend& a, const ChunkSend& b) { return a.start_us < b.start_us; });
    return result;
  }

 private:
  const PathTiming& timing(Index c, Index p) const { return (*timing_of_[c])[p]; }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }

  double finish() const {
    double last = 0;
    for (const auto& route : routes_) last = std::max(last, route.finish);
    return last;
  }
  double lateness(const Route& route) const {
    const double late = std::max(0.0, route.finish - options_.target_us);
    return late * late;
  }

  std::vector<Index> choose() {
    const Index any = random_() % chunks_.size();
    Index first = any;
    const bool late = uniform() < kLateShare;
    for (Index n = 0; n < chunks_.size(); ++n) {
      const Index c = (any + n) % chunks_.size();
      if (routes_[c].hops.empty() || (late && routes_[c].finish <= options_.target_us)) continue;
      first = c;
      break;
    }
    std::vector<Index> torn{first};
    const int companions = static_cast<int>(random_() % (kMostCompanions + 1));
    for (int i = 0; i < companions; ++i) {
      const Index c = random_() % chunks_.size();
      if (!routes_[c].hops.empty() && std::find(torn.begin(), torn.end(), c) == torn.end()) torn.push_back(c);
    }
    if (routes_[first].hops.empty()) return {};
    return torn;
  }

  void occupy(Index c, const Route& route, bool add) {
    for (const auto& hop : route.hops) occupy(c, hop, add);
  }
  void occupy(Index c, const Hop& hop, bool add) {
    const auto& path = network_.paths[hop.path];
    const auto& time = timing(c, hop.path);
    if (add) timeline_.add(path, time, hop.start);
    else timeline_.remove(path, time, hop.start);
    for (Index k = 0; k < path.links.size(); ++k)
      load_[static_cast<Index>(path.links[k])] += add ? time.occupancy[k] : -time.occupancy[k];
  }

  // The same hops, each at the first gap.
  Route put_back(Index c, const Route& old) {
    Route route = old;
    route.finish = 0;
    for (auto& hop : route.hops) {
      double from = 0;
      for (Index before : hop.before)
        from = std::max(from, route.hops[before].start + timing(c, route.hops[before].path).arrival);
      hop.start = timeline_.earliest(network_.paths[hop.path], timing(c, hop.path), from);
      occupy(c, hop, true);
      route.finish = std::max(route.finish, hop.start + timing(c, hop.path).arrival);
    }
    return route;
  }

  // What a transfer on path p costs beyond its time.
  double priced(Index c, Index p, const std::vector<double>& price) const {
    const auto& path = network_.paths[p];
    double sum = 0;
    for (Index k = 0; k < path.links.size(); ++k)
      sum += price[static_cast<Index>(path.links[k])] * timing(c, p).occupancy[k];
    return sum;
  }

  // Prices by load, with a weight of the moment.
  std::vector<double> draw_prices() {
    const double weight = kPriceWeights[random_() % (sizeof kPriceWeights / sizeof *kPriceWeights)];
    const double busiest = std::max(1e-300, *std::max_element(load_.begin(), load_.end()));
    std::vector<double> price(load_.size());
    for (Index l = 0; l < load_.size(); ++l) price[l] = weight * std::exp(kSharpness * (load_[l] / busiest - 1));
    return price;
  }

  // Another tree, or pair of trees, for the chunk; no hops where there was no room.
  Route grown(Index c) {
    const auto& chunk = chunks_[c];
    Route route;
    const std::vector<double> price = draw_prices();
    if (!chunk.reduce) {
      grow_out(c, static_cast<Index>(chunk.origin.front()), 0, price, route);
      prune(c, route);
    } else if (chunk.want.size() > 1) {
      const Index root = random_() % ranks_;
      const double meeting = uniform() * options_.target_us;
      if (grow_in(c, root, meeting, price, route)) grow_out(c, root, meeting, price, route);
    }
    return route;
  }

  // A tree of early arrivals from the root, which holds the chunk from `held` on, to all who want it.
  void grow_out(Index c, Index root, double held, const std::vector<double>& price, Route& route) {
    const auto& chunk = chunks_[c];
    Frontier frontier(ranks_);
    std::vector<bool> wanted(ranks_, false);
    for (int want : chunk.want) wanted[static_cast<Index>(want)] = true;
    wanted[root] = false;
    auto missing = static_cast<Index>(std::count(wanted.begin(), wanted.end(), true));
    std::vector<std::vector<Index>> into(ranks_);  // hops that bring what a GPU passes on
    for (Index i = 0; i < route.hops.size(); ++i)
      if (static_cast<Index>(network_.paths[route.hops[i].path].dst) == root) into[root].push_back(i);
    for (Index at = root;;) {
      frontier.done[at] = true;
      missing -= wanted[at];
      if (missing == 0) return;
      for (Index p : from_[at]) {
        const auto& path = network_.paths[p];
        const auto next = static_cast<Index>(path.dst);
        if (frontier.done[next] || !chunk.may_be_at(static_cast<int>(next))) continue;
        const double least = timing(c, p).arrival + priced(c, p, price);
        if (held + least >= frontier.key[next]) continue;
        const double begin = timeline_.earliest(path, timing(c, p), held);
        frontier.offer(next, begin + least, begin, p);
      }
      at = frontier.nearest([&](Index p, double start) {
        return timeline_.earliest(network_.paths[p], timing(c, p), start) - start;
      });
      if (at == kNone) {  // unreachable: the old tree must do
        occupy(c, route, false);
        route = {};
        return;
      }
      Hop hop{frontier.by[at], frontier.start[at], into[static_cast<Index>(network_.paths[frontier.by[at]].src)]};
      occupy(c, hop, true);
      held = hop.start + timing(c, hop.path).arrival;
      route.finish = std::max(route.finish, held);
      into[at] = {route.hops.size()};
      route.hops.push_back(std::move(hop));
    }
  }

  // A tree of late departures into the root, which needs all contributions by `meeting`; false, and nothing occupied,
  // where that is too soon.
  bool grow_in(Index c, Index root, double meeting, const std::vector<double>& price, Route& route) {
    const auto& chunk = chunks_[c];
    Frontier frontier(ranks_);
    Index missing = chunk.origin.size() - 1;
    double until = meeting;  // when the GPU at hand must have all it passes on
    for (Index at = root;;) {
      frontier.done[at] = true;
      for (Index p : into_[at]) {
        const auto& path = network_.paths[p];
        const auto next = static_cast<Index>(path.src);
        if (frontier.done[next] || !chunk.may_be_at(static_cast<int>(next))) continue;
        const double least = priced(c, p, price), latest = until - timing(c, p).arrival;
        if (meeting - latest + least >= frontier.key[next]) continue;
        const double begin = timeline_.latest(path, timing(c, p), latest);
        if (begin >= 0) frontier.offer(next, meeting - begin + least, begin, p);
      }
      if (missing == 0) break;
      at = frontier.nearest([&](Index p, double start) {
        return start - timeline_.latest(network_.paths[p], timing(c, p), start);
      }, -1);
      if (at == kNone || frontier.start[at] < 0) {
        occupy(c, route, false);
        route = {};
        return false;
      }
      Hop hop{frontier.by[at], frontier.start[at], {}};
      occupy(c, hop, true);
      until = hop.start;
      --missing;
      route.hops.push_back(std::move(hop));
    }
    std::reverse(route.hops.begin(), route.hops.end());
    std::vector<std::vector<Index>> into(ranks_);
    for (Index i = 0; i < route.hops.size(); ++i) {
      const auto& path = network_.paths[route.hops[i].path];
      route.hops[i].before = into[static_cast<Index>(path.src)];
      into[static_cast<Index>(path.dst)].push_back(i);
    }
    return true;
  }

  // Take out hops that lead to nobody who wants the chunk.
  void prune(Index c, Route& route) {
    std::vector<bool> needed(ranks_, false);
    for (int want : chunks_[c].want) needed[static_cast<Index>(want)] = true;
    std::vector<bool> keep(route.hops.size(), false);
    for (Index i = route.hops.size(); i-- > 0;) {
      const auto& path = network_.paths[route.hops[i].path];
      if (!needed[static_cast<Index>(path.dst)]) continue;
      needed[static_cast<Index>(path.src)] = true;
      keep[i] = true;
    }
    if (std::count(keep.begin(), keep.end(), false) == 0) return;
    std::vector<Index> place(route.hops.size());
    std::vector<Hop> kept;
    route.finish = 0;
    for (Index i = 0; i < route.hops.size(); ++i) {
      if (!keep[i]) {
        occupy(c, route.hops[i], false);
        continue;
      }
      place[i] = kept.size();
      for (Index& before : route.hops[i].before) before = place[before];
      route.finish = std::max(route.finish, route.hops[i].start + timing(c, route.hops[i].path).arrival);
      kept.push_back(std::move(route.hops[i]));
    }
    route.hops = std::move(kept);
  }

  const Network& network_;
  const std::vector<DemandedChunk>& chunks_;
  const RerouteOptions& options_;
  std::mt19937_64 random_;
  const Index ranks_;
  std::vector<std::vector<Index>> from_, into_;  // per GPU: paths
  std::map<double, std::vector<PathTiming>> timings_;
  std::vector<const std::vector<PathTiming>*> timing_of_;  // per chunk
  Timeline timeline_;
  std::vector<double> load_;     // per link
  std::vector<Route> routes_;    // per chunk
  Index moving_ = 0;
};

}  // namespace

double reroute(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
               const RerouteOptions& options) {
  Rerouter rerouter(network, chunks, sends, options);
  const double finish = rerouter.improve();
  sends = rerouter.sends();
  return finish;
}

}  // namespace teccl
