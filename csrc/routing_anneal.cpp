#include <algorithm>
#include <cmath>
#include <random>

#include "routing.hpp"

namespace teccl::routing {
namespace {

using Index = std::size_t;

// Spines with a live link; all of them if none has one.
std::vector<int> alive_spines(const Clos& fabric) {
  std::vector<int> alive, all;
  for (int s = 0; s < fabric.spines; ++s) {
    all.push_back(s);
    bool any = false;
    for (int tor = 0; tor < fabric.tors; ++tor) any = any || fabric.at(fabric.up(tor, s)) > 0;
    if (any) alive.push_back(s);
  }
  return alive.empty() ? all : alive;
}

// One spine per destination host. A flow whose two hops over that spine are not both alive takes the next that is.
class DestinationSpines {
 public:
  DestinationSpines(const Traffic& traffic, std::mt19937_64& random)
      : traffic_(traffic), spine_of_(static_cast<Index>(traffic.fabric.hosts())),
        into_(spine_of_.size()), routes_(traffic.flows.size(), kNone),
        load_(static_cast<Index>(traffic.fabric.fabric_links()), 0) {
    const std::vector<int> alive = alive_spines(traffic.fabric);
    for (int& spine : spine_of_) spine = alive[random() % alive.size()];
    for (Index f = 0; f < traffic.flows.size(); ++f)
      if (traffic.crosses(f)) into_[static_cast<Index>(traffic.flows[f].dst)].push_back(f);
    for (Index host = 0; host < into_.size(); ++host) {
      if (!into_[host].empty()) destinations_.push_back(host);
      for (Index f : into_[host]) put(f, route(f));
    }
  }

  const std::vector<Index>& destinations() const { return destinations_; }
  const Routes& routes() const { return routes_; }
  double excess() const { return excess_; }

  void swap(Index one, Index other) {
    std::swap(spine_of_[one], spine_of_[other]);
    for (Index host : {one, other})
      for (Index f : into_[host]) {
        count(f, routes_[f], -1);
        put(f, route(f));
      }
  }

 private:
  int route(Index f) const {
    const int spines = traffic_.fabric.spines, wanted = spine_of_[static_cast<Index>(traffic_.flows[f].dst)];
    for (int step = 0; step < spines; ++step)
      if (const int s = (wanted + step) % spines; traffic_.may_use(f, s)) return s;
    return kNone;
  }

  void put(Index f, int spine) {
    routes_[f] = spine;
    count(f, spine, +1);
  }

  void count(Index f, int spine, int by) {
    const Clos& fabric = traffic_.fabric;
    for (int link : {fabric.up(traffic_.from(f), spine), fabric.down(spine, traffic_.to(f))}) {
      double& load = load_[static_cast<Index>(link)];
      excess_ -= over(link, load);
      load += by * traffic_.flows[f].weight;
      excess_ += over(link, load);
    }
  }

  // What a link is asked for beyond the load of one mean flow per unit of capacity.
  double over(int link, double load) const {
    return std::max(0.0, load / traffic_.fabric.at(link) - mean_weight());
  }

  double mean_weight() const {
    if (mean_ == 0) {
      for (const Flow& flow : traffic_.flows) mean_ += flow.weight;
      mean_ /= static_cast<double>(traffic_.flows.size());
    }
    return mean_;
  }

  const Traffic& traffic_;
  std::vector<int> spine_of_;
  std::vector<std::vector<Index>> into_;
  std::vector<Index> destinations_;
  Routes routes_;
  std::vector<double> load_;
  double excess_ = 0;
  mutable double mean_ = 0;
};

}  // namespace

Routes anneal(const Traffic& traffic, std::uint64_t seed, int iterations) {
  std::mt19937_64 random(seed);
  DestinationSpines state(traffic, random);
  const auto& hosts = state.destinations();
  Routes best = state.routes();
  double energy = state.excess(), least = energy;
  double temperature = std::max(1.0, energy);
  const double cooling = iterations > 0 ? std::pow(1e-4, 1.0 / iterations) : 1.0;
  for (int i = 0; i < iterations && hosts.size() > 1; ++i, temperature *= cooling) {
    const std::size_t one = hosts[random() % hosts.size()], other = hosts[random() % hosts.size()];
    state.swap(one, other);
    const double reached = state.excess(), luck = static_cast<double>(random() >> 11) * 0x1.0p-53;
    if (reached > energy && luck >= std::exp((energy - reached) / temperature)) {
      state.swap(one, other);
      continue;
    }
    energy = reached;
    if (energy < least) {
      least = energy;
      best = state.routes();
    }
  }
  return best;
}

}  // namespace teccl::routing
