// The checker for Python: plain tuples, with the interpreter lock released while it works.
#include "check.hpp"

#include "module.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

py::list as_tuples(const std::vector<Finding>& findings) {
  py::list tuples;
  for (const Finding& found : findings) {
    tuples.append(py::make_tuple(found.code, found.place.gpu, found.place.tb, found.place.step, found.text,
                                 found.error ? "error" : "warning"));
  }
  return tuples;
}

py::dict check(const Program& program, std::int64_t credits, std::int64_t max_count, std::int32_t max_dependency_tb,
               std::size_t listed, int root) {
  CheckReport report;
  {
    py::gil_scoped_release release;
    report = check_program(program, {credits, max_count, max_dependency_tb, listed, root});
  }
  py::list proofs;
  for (const ProofState& proof : report.proofs) proofs.append(py::make_tuple(proof.name, proof.outcome));
  py::dict result;
  result["findings"] = as_tuples(report.findings);
  result["handovers"] = as_tuples(report.handovers);
  result["proofs"] = proofs;
  result["min_credits"] = report.min_credits;
  result["root"] = report.root;
  return result;
}

}  // namespace

void bind_check(py::module_& module) {
  module.def("check", &check, py::arg("program"), py::kw_only(), py::arg("credits"), py::arg("max_count"),
             py::arg("max_dependency_tb"), py::arg("listed"), py::arg("root"));
}

}  // namespace teccl
