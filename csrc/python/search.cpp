// Networks, demands, the schedule simulation and the greedy search for Python: integer and float arrays in and out.
#include <optional>

#include "dispatch.hpp"
#include "greedy.hpp"
#include "justify.hpp"
#include "module.hpp"
#include "packing.hpp"
#include "reroute.hpp"
#include "retime.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

using Sends = std::vector<ChunkSend>;

struct Demanded {
  std::vector<DemandedChunk> chunks;
};

Network make_network(int ranks, const std::vector<double>& bandwidth_GBps, const std::vector<double>& alpha_us,
                     const std::vector<std::tuple<int, int, std::vector<int>>>& paths,
                     const std::vector<int>& trunks) {
  Network network{ranks, {}, {}};
  for (std::size_t i = 0; i < bandwidth_GBps.size(); ++i)
    network.links.push_back({bandwidth_GBps[i], alpha_us.at(i)});
  for (const auto& [src, dst, links] : paths) network.paths.push_back({src, dst, links});
  for (std::size_t i = 0; i < trunks.size(); ++i) network.paths.at(i).trunk = trunks[i];
  return network;
}

Demanded make_demand(const std::vector<std::tuple<double, bool, std::vector<int>, std::vector<int>>>& chunks,
                     const std::vector<std::vector<int>>& holders, const std::vector<double>& weights) {
  Demanded demand;
  for (const auto& [bytes, reduce, origin, want] : chunks) demand.chunks.push_back({bytes, reduce, origin, want});
  for (std::size_t i = 0; i < holders.size(); ++i) demand.chunks.at(i).holders = holders[i];
  for (std::size_t i = 0; i < weights.size(); ++i) demand.chunks.at(i).weight = weights[i];
  return demand;
}

// (chunk, path, start, arrival) arrays
py::tuple columns(const Sends& sends) {
  const auto n = static_cast<py::ssize_t>(sends.size());
  py::array_t<std::int64_t> chunk(n), path(n);
  py::array_t<double> start(n), arrival(n);
  for (py::ssize_t i = 0; i < n; ++i) {
    const auto& send = sends[static_cast<std::size_t>(i)];
    chunk.mutable_at(i) = send.chunk;
    path.mutable_at(i) = send.path;
    start.mutable_at(i) = send.start_us;
    arrival.mutable_at(i) = send.arrival_us;
  }
  return py::make_tuple(chunk, path, start, arrival);
}

Sends timed_sends(const std::vector<int>& chunk, const std::vector<int>& path, const std::vector<double>& start_us,
                  const std::vector<double>& arrival_us) {
  Sends sends;
  for (std::size_t i = 0; i < chunk.size(); ++i)
    sends.push_back({chunk[i], path.at(i), start_us.at(i), arrival_us.at(i)});
  return sends;
}

}  // namespace

void bind_search(py::module_& module) {
  py::class_<Network>(module, "Network")
      .def(py::init(&make_network), py::arg("ranks"), py::arg("bandwidth_GBps"), py::arg("alpha_us"),
           py::arg("paths"), py::arg("trunks") = std::vector<int>());
  py::class_<Demanded>(module, "Demanded").def(
      py::init(&make_demand), py::arg("chunks"), py::arg("holders") = std::vector<std::vector<int>>{},
      py::arg("weights") = std::vector<double>{});
  module.def(
      "retime",
      [](const Network& network, const Demanded& demand, const std::vector<int>& chunk, const std::vector<int>& path) {
        Sends sends;
        for (std::size_t i = 0; i < chunk.size(); ++i) sends.push_back({chunk[i], path.at(i), 0, 0});
        {
          py::gil_scoped_release release;
          retime(network, demand.chunks, sends);
        }
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("chunk"), py::arg("path"));
  module.def(
      "left_shift",
      [](const Network& network, const Demanded& demand, const std::vector<int>& chunk, const std::vector<int>& path,
         const std::vector<double>& start_us) -> std::optional<py::tuple> {
        Sends sends;
        for (std::size_t i = 0; i < chunk.size(); ++i) sends.push_back({chunk[i], path.at(i), start_us.at(i), 0});
        bool feasible = false;
        {
          py::gil_scoped_release release;
          feasible = left_shift(network, demand.chunks, sends);
        }
        if (!feasible) return std::nullopt;
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("chunk"), py::arg("path"), py::arg("start_us"));
  module.def(
      "dispatch",
      [](const Network& network, const Demanded& demand, const std::vector<int>& chunk, const std::vector<int>& path,
         const std::vector<double>& priority) {
        Sends sends;
        for (std::size_t i = 0; i < chunk.size(); ++i) sends.push_back({chunk[i], path.at(i), 0, 0});
        {
          py::gil_scoped_release release;
          dispatch(network, demand.chunks, sends, priority);
        }
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("chunk"), py::arg("path"), py::arg("priority"));
  module.def(
      "dispatch_longest_first",
      [](const Network& network, const Demanded& demand, const std::vector<int>& chunk, const std::vector<int>& path,
         const std::vector<double>& start_us, const std::vector<double>& arrival_us, double load_weight, double noise,
         std::uint64_t seed) {
        Sends sends = timed_sends(chunk, path, start_us, arrival_us);
        {
          py::gil_scoped_release release;
          dispatch_longest_first(network, demand.chunks, sends, load_weight, noise, seed);
        }
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("chunk"), py::arg("path"), py::arg("start_us"),
      py::arg("arrival_us"), py::arg("load_weight"), py::arg("noise"), py::arg("seed"));
  module.def(
      "justify",
      [](const Network& network, const Demanded& demand, const std::vector<int>& chunk, const std::vector<int>& path,
         const std::vector<double>& start_us, const std::vector<double>& arrival_us, bool shared, int rounds,
         double noise, std::uint64_t seed) {
        Sends sends = timed_sends(chunk, path, start_us, arrival_us);
        {
          py::gil_scoped_release release;
          justify(network, demand.chunks, sends, shared, rounds, noise, seed);
        }
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("chunk"), py::arg("path"), py::arg("start_us"),
      py::arg("arrival_us"), py::arg("shared"), py::arg("rounds"), py::arg("noise"), py::arg("seed"));
  module.def(
      "reroute",
      [](const Network& network, const Demanded& demand, const std::vector<int>& chunk, const std::vector<int>& path,
         const std::vector<double>& start_us, const std::vector<double>& arrival_us, double target_us, int moves,
         bool regrow, std::uint64_t seed) {
        Sends sends = timed_sends(chunk, path, start_us, arrival_us);
        {
          py::gil_scoped_release release;
          reroute(network, demand.chunks, sends, {target_us, moves, regrow, seed});
        }
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("chunk"), py::arg("path"), py::arg("start_us"),
      py::arg("arrival_us"), py::arg("target_us"), py::arg("moves"), py::arg("regrow"), py::arg("seed"));
  module.def(
      "pack_trees",
      [](const Network& network, const Demanded& demand, double depth_weight, int rounds, double enough_us,
         std::uint64_t seed) {
        Packing packing;
        {
          py::gil_scoped_release release;
          packing = pack_trees(network, demand.chunks, {depth_weight, rounds, enough_us, seed});
        }
        return py::make_tuple(columns(packing.sends), packing.busiest_us);
      },
      py::arg("network"), py::arg("demand"), py::arg("depth_weight"), py::arg("rounds"), py::arg("enough_us"),
      py::arg("seed"));
  module.def(
      "greedy",
      [](const Network& network, const Demanded& demand, std::uint64_t seed, double noise,
         double deadline_us) {
        Sends sends;
        {
          py::gil_scoped_release release;
          sends = greedy(network, demand.chunks, seed, noise, deadline_us);
        }
        return columns(sends);
      },
      py::arg("network"), py::arg("demand"), py::arg("seed"), py::arg("noise"),
      py::arg("deadline_us"));
}

}  // namespace teccl
