// simulate_program for Python: the transport as flat arrays, the answer as tuples.
#include "simulate_program.hpp"

#include <string>
#include <tuple>

#include "module.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

using Numbers = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Indices = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

// Threadblocks count on from GPU to GPU: the links of number t's route are route_links[route_ends[t−1]:route_ends[t]].
std::vector<std::vector<Route>> routes_of(const Program& program, const Indices& route_links, const Indices& route_ends,
                                          const Numbers& extra_alpha) {
  auto links = route_links.unchecked<1>();
  auto ends = route_ends.unchecked<1>();
  auto extra = extra_alpha.unchecked<1>();
  std::vector<std::vector<Route>> routes;
  py::ssize_t row = 0;
  std::int32_t begin = 0;
  for (const Gpu& gpu : program.gpus) {
    routes.emplace_back();
    for (std::size_t tb = 0; tb < gpu.threadblocks.size(); ++tb, ++row) {
      Route route{{}, extra(row)};
      for (; begin < ends(row); ++begin) route.links.push_back(links(begin));
      routes.back().push_back(std::move(route));
    }
  }
  return routes;
}

ProgramTiming simulate(const Program& program, const Numbers& bandwidth, const Numbers& alpha,
                       const Indices& route_links, const Indices& route_ends, const Numbers& extra_alpha,
                       double threadblock_GBps, std::int64_t credits, std::int64_t chunks_per_transfer,
                       std::int64_t iterations, double slice_bytes, double last_slice_bytes, bool timeline) {
  Transport transport{{}, routes_of(program, route_links, route_ends, extra_alpha), threadblock_GBps, credits,
                      chunks_per_transfer, iterations, slice_bytes, last_slice_bytes, timeline};
  auto b = bandwidth.unchecked<1>();
  auto a = alpha.unchecked<1>();
  for (py::ssize_t i = 0; i < b.shape(0); ++i) transport.links.push_back({b(i), a(i)});
  py::gil_scoped_release release;
  return simulate_program(program, transport);
}

template <class T, class AsTuple>
py::list listed(const std::vector<T>& items, AsTuple as_tuple) {
  py::list list;
  for (const T& item : items) list.append(as_tuple(item));
  return list;
}

py::tuple activity_tuple(const Activity& activity) {
  return py::make_tuple(activity.gpu, activity.threadblock, activity.step, activity.iteration, activity.start_us,
                        activity.end_us, cause_name(activity.cause));
}

}  // namespace

void bind_simulate_program(py::module_& module) {
  py::class_<ProgramTiming>(module, "ProgramTiming")
      .def_readonly("finish_us", &ProgramTiming::finish_us)
      .def_property_readonly("threadblocks", [](const ProgramTiming& timing) {
        return listed(timing.threadblocks, [](const ThreadblockUse& use) {
          return py::make_tuple(use.gpu, use.threadblock, use.busy_us, use.finish_us);
        });
      })
      .def_property_readonly("critical_path",
                             [](const ProgramTiming& timing) { return listed(timing.critical_path, activity_tuple); })
      .def_property_readonly("timeline",
                             [](const ProgramTiming& timing) { return listed(timing.timeline, activity_tuple); })
      .def_property_readonly("blocked", [](const ProgramTiming& timing) {
        return listed(timing.blocked, [](const Blocked& blocked) {
          return py::make_tuple(blocked.gpu, blocked.threadblock, blocked.step, blocked.iteration,
                                cause_name(blocked.cause));
        });
      });
  module.def("simulate_program", &simulate, py::arg("program"), py::kw_only(), py::arg("bandwidth_GBps"),
             py::arg("alpha_us"), py::arg("route_links"), py::arg("route_ends"), py::arg("extra_alpha_us"),
             py::arg("threadblock_GBps"), py::arg("credits"), py::arg("chunks_per_transfer"), py::arg("iterations"),
             py::arg("slice_bytes"), py::arg("last_slice_bytes"), py::arg("timeline") = false);
}

}  // namespace teccl
