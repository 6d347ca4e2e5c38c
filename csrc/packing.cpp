#include "packing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>

namespace teccl {
namespace {

using Index = std::size_t;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kRootsTried = 4;         // when the root is ours to choose
constexpr double kReparentedShare = 0.25;
constexpr double kBusiestShare = 0.75;  // of the trees torn out are across the busiest link

// A path in a tree, and when it would start if no link were shared: after the root's start, or before its end.
struct Branch {
  Index path;
  double time_us;
};

struct Tree {
  std::vector<Branch> in, out;  // in the order of growth, from the root
  Index root = 0;
};

class Packer {
 public:
  Packer(const Network& network, const std::vector<DemandedChunk>& chunks, const PackingOptions& options)
      : network_(network), chunks_(chunks), options_(options), random_(options.seed),
        ranks_(static_cast<Index>(network.ranks)), from_(ranks_), into_(ranks_), load_(network.links.size(), 0),
        price_(network.links.size()), trees_(chunks.size()) {
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
  }

  Packing pack() {
    estimate();
    for (Index i : shuffled()) plant(i);
    Packing best = packing();
    const Index moves = static_cast<Index>(options_.rounds) * chunks_.size();
    for (Index move = 0; move < moves && best.busiest_us > options_.enough_us; ++move) {
      if (move % std::max<Index>(1, chunks_.size() / 4) == 0) {
        const double progress = static_cast<double>(move) / static_cast<double>(moves);
        sharpness_ = kGentle * std::pow(kSharp / kGentle, progress);
        reprice();
      }
      const Index c = choose();
      tear_out(c);
      plant(c);
      if (busiest() < best.busiest_us * (1 - 1e-9)) best = packing();
    }
    return best;
  }

 private:
  static constexpr double kGentle = 8, kSharp = 120;
  // Where links are far slower than others, first loads are many times the scale: prices must stay finite.
  static constexpr double kSteepest = 300;

  const PathTiming& timing(Index c, Index p) const { return (*timing_of_[c])[p]; }

  // A scale for loads: what the busiest link would carry were the load spread by bandwidth.
  void estimate() {
    double bytes = 0, bandwidth = 0;
    for (const auto& chunk : chunks_)
      bytes += chunk.bytes * static_cast<double>(chunk.want.size() + chunk.origin.size() - 1);
    for (const auto& link : network_.links) bandwidth += link.bandwidth_GBps;
    scale_ = std::max(1e-9, bytes / (1e3 * bandwidth));
    reprice();
  }

  void reprice() {
    scale_ = std::max(scale_, busiest());
    for (Index l = 0; l < price_.size(); ++l) refresh(l);
  }
  void refresh(Index l) { price_[l] = std::exp(std::min(kSteepest, sharpness_ * (load_[l] / scale_ - 1))); }
  double busiest() const { return *std::max_element(load_.begin(), load_.end()); }

  double uniform() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }

  std::vector<Index> shuffled() {
    std::vector<Index> order(chunks_.size());
    for (Index i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  Index choose() {
    const Index any = random_() % chunks_.size();
    if (uniform() > kBusiestShare) return any;
    const Index link = static_cast<Index>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    for (Index n = 0; n < chunks_.size(); ++n) {
      const Index c = (any + n) % chunks_.size();
      for (const auto* side : {&trees_[c].in, &trees_[c].out})
        for (const auto& branch : *side)
          for (int l : network_.paths[branch.path].links)
            if (static_cast<Index>(l) == link) return c;
    }
    return any;
  }

  void occupy(Index c, const Tree& tree, double sign) {
    for (const auto* side : {&tree.in, &tree.out})
      for (const auto& branch : *side) {
        const auto& links = network_.paths[branch.path].links;
        for (Index k = 0; k < links.size(); ++k) {
          const auto l = static_cast<Index>(links[k]);
          load_[l] += sign * timing(c, branch.path).occupancy[k];
          refresh(l);
        }
      }
  }
  void tear_out(Index c) {
    occupy(c, trees_[c], -1);
    previous_root_ = trees_[c].root;
    trees_[c] = {};
  }

  void plant(Index c) {
    const auto& chunk = chunks_[c];
    Tree best;
    if (!chunk.reduce) {
      best.root = static_cast<Index>(chunk.origin.front());
      grow(c, best.root, false, chunk.want, best.out);
    } else if (chunk.want.size() == 1) {
      best.root = static_cast<Index>(chunk.want.front());
      grow(c, best.root, true, chunk.origin, best.in);
    } else {
      double least = kNever;
      for (int i = 0; i < kRootsTried; ++i) {
        Tree tree;
        tree.root = i == 0 ? previous_root_ : random_() % ranks_;
        const double cost = grow(c, tree.root, true, chunk.origin, tree.in) +
                            grow(c, tree.root, false, chunk.want, tree.out);
        if (cost < least) {
          least = cost;
          best = std::move(tree);
        }
      }
    }
    occupy(c, best, 1);
    trees_[c] = std::move(best);
  }

  // A tree from `root` to all `ends`; `inward` trees are made of the paths that lead towards the root. Returns its price.
  double grow(Index c, Index root, bool inward, const std::vector<int>& ends, std::vector<Branch>& tree) {
    std::vector<double> cost(ranks_, kNever), reached(ranks_, kNever), starts(ranks_, 0);
    std::vector<Index> by(ranks_, 0);
    std::vector<bool> done(ranks_, false);
    Index missing = 0;
    std::vector<bool> wanted(ranks_, false);
    for (int end : ends) wanted[static_cast<Index>(end)] = true;
    wanted[root] = false;
    for (Index v = 0; v < ranks_; ++v) missing += wanted[v];
    reached[root] = 0;
    double total = 0;
    for (Index at = root;;) {
      done[at] = true;
      if (at != root) {
        tree.push_back({by[at], starts[at]});
        total += cost[at];
        missing -= wanted[at];
      }
      if (missing == 0) break;
      for (Index p : inward ? into_[at] : from_[at]) {
        const auto& path = network_.paths[p];
        const auto next = static_cast<Index>(inward ? path.src : path.dst);
        if (done[next] || !chunks_[c].may_be_at(static_cast<int>(next))) continue;
        const auto& time = timing(c, p);
        const double price = (load_price(c, p) + options_.depth_weight * (reached[at] + time.arrival) / scale_) *
                             (1 + 1e-3 * uniform());
        if (price < cost[next]) {
          cost[next] = price;
          by[next] = p;
          starts[next] = reached[at];
          reached[next] = reached[at] + time.arrival;
        }
      }
      Index nearest = ranks_;
      for (Index v = 0; v < ranks_; ++v)
        if (!done[v] && cost[v] < kNever && (nearest == ranks_ || cost[v] < cost[nearest])) nearest = v;
      if (nearest == ranks_) throw std::invalid_argument("some GPU cannot be reached by chunk " + std::to_string(c));
      at = nearest;
    }
    if (uniform() < kReparentedShare) total = reparent(c, root, inward, cost, by, tree);
    prune(inward, wanted, tree);
    return total;
  }

  // Prim's rule is no optimum where arcs have a direction: hang GPUs on cheaper branches as long as there are such.
  double reparent(Index c, Index root, bool inward, std::vector<double>& cost, std::vector<Index>& by,
                  std::vector<Branch>& tree) {
    auto near = [&](Index p) { return static_cast<Index>(inward ? network_.paths[p].dst : network_.paths[p].src); };
    std::vector<bool> member(ranks_, false);
    member[root] = true;
    for (const auto& branch : tree)
      member[static_cast<Index>(inward ? network_.paths[branch.path].src : network_.paths[branch.path].dst)] = true;
    auto hangs_below = [&](Index rank, Index above) {
      while (rank != root && rank != above) rank = near(by[rank]);
      return rank == above;
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (Index v = 0; v < ranks_; ++v) {
        if (v == root || !member[v]) continue;
        for (Index p : inward ? from_[v] : into_[v]) {
          if (!member[near(p)] || p == by[v]) continue;
          const double price = load_price(c, p);
          if (price >= cost[v] * (1 - 1e-9) || hangs_below(near(p), v)) continue;
          cost[v] = price;
          by[v] = p;
          changed = true;
        }
      }
    }
    // In the order of growth again.
    std::vector<Index> depth_first{root};
    std::vector<std::vector<Index>> below(ranks_);
    std::vector<double> reached(ranks_, 0);
    double total = 0;
    for (Index v = 0; v < ranks_; ++v)
      if (v != root && member[v]) below[near(by[v])].push_back(v);
    tree.clear();
    while (!depth_first.empty()) {
      const Index at = depth_first.back();
      depth_first.pop_back();
      for (Index v : below[at]) {
        tree.push_back({by[v], reached[at]});
        reached[v] = reached[at] + timing(c, by[v]).arrival;
        total += cost[v];
        depth_first.push_back(v);
      }
    }
    return total;
  }

  double load_price(Index c, Index p) const {
    const auto& links = network_.paths[p].links;
    double price = 0;
    for (Index k = 0; k < links.size(); ++k)
      price += price_[static_cast<Index>(links[k])] * timing(c, p).occupancy[k] / scale_;
    return price;
  }

  // Drop branches that lead to no end.
  void prune(bool inward, std::vector<bool> needed, std::vector<Branch>& tree) {
    std::vector<Branch> kept;
    for (auto branch = tree.rbegin(); branch != tree.rend(); ++branch) {
      const auto& path = network_.paths[branch->path];
      const auto far = static_cast<Index>(inward ? path.src : path.dst);
      if (!needed[far]) continue;
      needed[static_cast<Index>(inward ? path.dst : path.src)] = true;
      kept.push_back(*branch);
    }
    std::reverse(kept.begin(), kept.end());
    tree = std::move(kept);
  }

  Packing packing() const {
    Packing result;
    result.busiest_us = busiest();
    for (Index c = 0; c < trees_.size(); ++c) {
      double gathered = 0;
      for (const auto& branch : trees_[c].in)
        gathered = std::max(gathered, branch.time_us + timing(c, branch.path).arrival);
      for (auto branch = trees_[c].in.rbegin(); branch != trees_[c].in.rend(); ++branch) {
        const double arrival = gathered - branch->time_us;
        result.sends.push_back({static_cast<int>(c), static_cast<int>(branch->path),
                                arrival - timing(c, branch->path).arrival, arrival});
      }
      for (const auto& branch : trees_[c].out) {
        const double start = gathered + branch.time_us;
        result.sends.push_back({static_cast<int>(c), static_cast<int>(branch.path), start,
                                start + timing(c, branch.path).arrival});
      }
    }
    return result;
  }

  const Network& network_;
  const std::vector<DemandedChunk>& chunks_;
  const PackingOptions& options_;
  std::mt19937_64 random_;
  const Index ranks_;
  std::vector<std::vector<Index>> from_, into_;  // per GPU: paths
  std::map<double, std::vector<PathTiming>> timings_;
  std::vector<const std::vector<PathTiming>*> timing_of_;  // per chunk
  std::vector<double> load_, price_;                       // per link
  std::vector<Tree> trees_;                                // per chunk
  double scale_ = 0, sharpness_ = kGentle;
  Index previous_root_ = 0;
};

}  // namespace

Packing pack_trees(const Network& network, const std::vector<DemandedChunk>& chunks, const PackingOptions& options) {
  return Packer(network, chunks, options).pack();
}

}  // namespace teccl
