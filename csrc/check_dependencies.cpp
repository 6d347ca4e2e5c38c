// Dependencies, nops and fused reductions as the runtimes' loaders read them (MSCCL XML reference §6).
//
// A loader drops nops, hands their dependencies to the next real step and counts step numbers back up by them: the
// flag that a step raises carries its number in the file only if every nop before it carries a dependency.
#include <algorithm>

#include "check_wiring.hpp"

namespace teccl {
namespace {

constexpr int max_fused_reductions = 16;

bool is_nop(const Step& step) { return step.op == Op::nop; }

// The step whose flag ends a wait for `number`: flags only grow, so any later one will do. −1: none is raised.
std::int32_t raised_at_or_after(const std::vector<Step>& steps, std::int32_t number) {
  for (auto at = static_cast<std::size_t>(number); at < steps.size(); ++at) {
    if (steps[at].has_dep && !is_nop(steps[at])) return static_cast<std::int32_t>(at);
  }
  return -1;
}

std::int32_t first_bare_nop(const std::vector<Step>& steps) {
  auto found = std::find_if(steps.begin(), steps.end(), [](const Step& s) { return is_nop(s) && s.dep_tb < 0; });
  return found == steps.end() ? -1 : static_cast<std::int32_t>(found - steps.begin());
}

void check_nops(const Wiring& wiring, std::int32_t tb, Findings& findings) {
  const std::vector<Step>& steps = wiring.threadblock(tb).steps;
  const std::int32_t first = wiring.first_step[tb];
  std::int32_t carried = -1;  // the first nop whose dependency still looks for a step
  for (std::size_t at = 0; at < steps.size(); ++at) {
    const Step& step = steps[at];
    const Place place = wiring.place_of(first + static_cast<std::int32_t>(at));
    if (is_nop(step)) {
      if (step.has_dep) findings.warning("nop-hasdep", place, "hasdep on a nop is never raised");
      if (step.dep_tb >= 0 && carried < 0) carried = static_cast<std::int32_t>(at);
    } else {
      if (carried >= 0 && step.dep_tb < 0) {
        findings.error("nop-orphan", place,
                       say("has no dependency of its own, so loaders reject those of the nops from step ", carried,
                           " on; move the last nop's dependency here"));
      }
      carried = -1;
    }
  }
  if (!steps.empty() && is_nop(steps.back())) {
    const bool only_nops = std::all_of(steps.begin(), steps.end(), is_nop);
    findings.warning("nop-trailing", wiring.place_of(first + static_cast<std::int32_t>(steps.size()) - 1),
                     only_nops ? "a threadblock of nops alone vanishes: it waits for nothing"
                               : "nops at the end of a threadblock vanish: they wait for nothing");
  }
}

void check_fusion(const Wiring& wiring, std::int32_t tb, Findings& findings) {
  const std::vector<Step>& steps = wiring.threadblock(tb).steps;
  const Step* chain = nullptr;  // the reduction that the next one would be fused with
  int length = 0;
  for (std::size_t at = 0; at < steps.size(); ++at) {
    const Step& step = steps[at];
    if (is_nop(step)) continue;
    if (step.op != Op::reduce) {
      chain = nullptr;
      continue;
    }
    const bool fuses = chain && chain->dst_buffer == step.dst_buffer && chain->dst_offset == step.dst_offset &&
                       chain->src_buffer == step.src_buffer && step.dep_tb < 0;
    length = fuses ? length + 1 : 1;
    const Place place = wiring.place_of(wiring.first_step[tb] + static_cast<std::int32_t>(at));
    if (fuses && step.count != chain->count) {
      findings.error("fusion-count", place,
                     say("is fused with the re before it, which has cnt ", chain->count, ", not ", step.count,
                         "; fused reductions need equal counts"));
    }
    if (length == max_fused_reductions + 1) {
      findings.error("fusion-limit", place,
                     say("is number ", length, " of a chain of fused re; at most ", max_fused_reductions,
                         " are fused: set hasdep=1 on one before it"));
    }
    chain = step.has_dep ? nullptr : &step;
  }
}

}  // namespace

void resolve_dependencies(Wiring& wiring, const CheckOptions& options, Findings& findings) {
  std::vector<std::int32_t> bare_nop;
  for (std::int32_t tb = 0; tb < wiring.tb_count(); ++tb) {
    bare_nop.push_back(first_bare_nop(wiring.threadblock(tb).steps));
    check_nops(wiring, tb, findings);
    check_fusion(wiring, tb, findings);
  }
  std::vector<bool> numbering_matters(bare_nop.size(), false);

  for (std::int32_t step = 0; step < wiring.step_count(); ++step) {
    const Step& waiter = *wiring.steps[step];
    const Place place = wiring.place_of(step);
    if (waiter.dep_tb == -1) {
      if (waiter.dep_step != -1) {
        findings.warning("dep-ignored", place, say("deps=", waiter.dep_step, " without a depid waits for nothing"));
      }
      continue;
    }
    const int rank = place.gpu;
    const std::string awaited = say("tb ", waiter.dep_tb, " step ", waiter.dep_step);
    const std::int32_t blocks = wiring.first_tb[rank + 1] - wiring.first_tb[rank];
    if (waiter.dep_tb < 0 || waiter.dep_tb >= blocks) {
      findings.error("dep-missing", place,
                     say("waits for ", awaited, ", but gpu ", rank, " has ", blocks, " threadblocks"));
      continue;
    }
    if (waiter.dep_tb > options.max_dependency_tb) {
      findings.error(
          "dep-id", place,
          say("waits for ", awaited, "; depid is stored in eight bits: at most ", options.max_dependency_tb));
    }
    const std::int32_t other = wiring.first_tb[rank] + waiter.dep_tb;
    const std::vector<Step>& steps = wiring.threadblock(other).steps;
    if (waiter.dep_step < 0 || waiter.dep_step >= static_cast<std::int64_t>(steps.size())) {
      findings.error("dep-missing", place,
                     say("waits for ", awaited, ", but tb ", waiter.dep_tb, " has ", steps.size(), " steps"));
      continue;
    }
    const std::int32_t raised = raised_at_or_after(steps, waiter.dep_step);
    if (raised < 0) {
      findings.error("dep-unraised", place,
                     say("waits for ", awaited, ", but neither it nor a later step of tb ", waiter.dep_tb,
                         " raises a flag: set its hasdep=1"));
      continue;
    }
    if (other == wiring.tb_of_step[step]) {
      if (raised >= place.step) {
        findings.error("dep-self", place,
                       say("waits for step ", raised, " of its own threadblock, which comes ",
                           raised == place.step ? "no earlier" : "later"));
        continue;
      }
      findings.warning("dep-own", place, say("waits for ", awaited, " of its own threadblock, which is done anyway"));
    }
    if (raised != waiter.dep_step) {
      findings.warning("dep-late", place,
                       say("waits for ", awaited, ", which has no hasdep=1; what ends the wait is step ", raised));
    }
    const std::int32_t bare = bare_nop[other];
    if (bare >= 0 && bare <= raised) numbering_matters[other] = true;
    wiring.waits_for[step] = wiring.first_step[other] + raised;
  }

  for (std::int32_t tb = 0; tb < wiring.tb_count(); ++tb) {
    const std::int32_t bare = bare_nop[tb];
    if (bare < 0) continue;
    const Place place = wiring.place_of(wiring.first_step[tb] + bare);
    if (numbering_matters[tb]) {
      findings.error("nop-bare", place,
                     "a nop without a dependency shifts the numbers of the steps after it, which others wait for");
    } else {
      findings.warning("nop-bare", place,
                       "a nop without a dependency does nothing but shift the step numbers after it");
    }
  }
}

}  // namespace teccl
