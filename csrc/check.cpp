#include "check.hpp"

#include <algorithm>
#include <stdexcept>

#include "check_collective.hpp"
#include "check_data.hpp"
#include "check_progress.hpp"
#include "check_races.hpp"
#include "check_wiring.hpp"

namespace teccl {
namespace {

constexpr std::int64_t max_cells = std::int64_t{1} << 25;  // of all ranks: 256 MiB of symbols

// The proofs in turn. One that fails may leave those that build on it without ground to stand on.
class Examination {
 public:
  Examination(const Program& program, const CheckOptions& options)
      : program_(program),
        options_(options),
        findings_(options.listed, program.in_place && program.out_of_place),
        handovers_(options.listed, false),
        wiring_(lay_flat(program)),
        progress_(wiring_),
        root_(options.root) {}

  CheckReport report() {
    bool sound = prove("connections", [&] { connect(wiring_, findings_); });
    sound &= prove("matching", [&] { match(wiring_, findings_); });
    sound &= prove("bounds", [&] {
      shape_ = shape_of(program_, findings_);
      check_bounds(wiring_, shape_, options_, findings_);
    });
    sound &= prove("dependencies", [&] { resolve_dependencies(wiring_, options_, findings_); });

    bool finishes = false;
    attempt(sound, "progress", [&] { finishes = check_progress(); });
    const bool fits = finishes && find_root();
    for (Mode mode : modes()) {
      findings_.in_mode(mode);
      handovers_.in_mode(mode);
      attempt(fits, say("data ", mode_name(mode)), [&] { check_data(mode); });
      if (fits && !shape_.known() && proofs_.back().outcome == "proved") proofs_.back().outcome = "no postcondition";
      attempt(fits, say("races ", mode_name(mode)),
              [&] { check_races(wiring_, shape_, root_, mode, progress_.order(), findings_, handovers_); });
    }
    return {findings_.all(), proofs_, handovers_.all(), min_credits_, shape_.rooted() ? root_ : -1};
  }

 private:
  std::vector<Mode> modes() const {
    std::vector<Mode> result;
    if (program_.out_of_place) result.push_back(Mode::out_of_place);
    if (program_.in_place) result.push_back(Mode::in_place);
    return result;
  }

  template <class Work>
  bool prove(const std::string& name, Work work) {
    const std::size_t before = findings_.errors();
    try {
      work();
    } catch (const std::length_error& reason) {
      findings_.error("too-large", {}, say(name, ": ", reason.what(), "; the proof is refused"));
    }
    const bool holds = findings_.errors() == before;
    proofs_.push_back({name, holds ? "proved" : "failed"});
    return holds;
  }

  template <class Work>
  void attempt(bool has_ground, const std::string& name, Work work) {
    if (has_ground) {
      prove(name, work);
    } else {
      proofs_.push_back({name, "not attempted"});
    }
  }

  // Whether everything finishes at least with unlimited credits; leaves an order of the steps.
  bool check_progress() {
    min_credits_ = progress_.fewest_credits();
    if (!min_credits_) {
      progress_.explain("deadlock", findings_);
      return false;
    }
    if (*min_credits_ > options_.credits) {
      findings_.error("credits", {},
                      say("hangs with the ", options_.credits, " transfers in flight that ", program_.protocol,
                          " allows each connection; it needs ", *min_credits_));
      progress_.finishes(options_.credits);
      progress_.explain("credits", findings_);
    }
    progress_.finishes(*min_credits_);
    return true;
  }

  // False when the root stays unknown or the buffers are too large to follow.
  bool find_root() {
    const Mode mode = modes().empty() ? Mode::out_of_place : modes().front();
    const std::int64_t cells = total_cells(place_buffers(wiring_, shape_, root_, mode));
    if (cells > max_cells) {
      findings_.error(
          "too-large", {},
          say("the buffers of all ranks have ", cells, " chunks; data and races are followed up to ", max_cells));
      return false;
    }
    if (!shape_.rooted() || root_ >= 0) return true;
    Execution execution(wiring_, shape_, -1, mode, true);
    execution.run(progress_.order(), nullptr);
    const std::vector<std::int64_t> votes = execution.root_votes();
    const auto best = std::max_element(votes.begin(), votes.end());
    const auto others = std::count(votes.begin(), votes.end(), *best) - 1;
    if (others > 0 && shape_.ranks > 1) {
      findings_.error("root", {},
                      say("the data flow points to ", *best == 0 ? "no root" : say(others + 1, " roots alike"),
                          "; name it (--root)"));
      return false;
    }
    root_ = static_cast<int>(best - votes.begin());
    return true;
  }

  void check_data(Mode mode) {
    Execution execution(wiring_, shape_, root_, mode, !shape_.known());
    execution.run(progress_.order(), &findings_);
    if (shape_.known()) {
      execution.check_result(progress_.order(), findings_);
    } else {
      findings_.warning("no-postcondition", {},
                        say("what a ", program_.collective,
                            " must end with is not known: only that no step "
                            "reads what holds nothing was checked"));
    }
  }

  const Program& program_;
  const CheckOptions& options_;
  Findings findings_;
  Findings handovers_;
  Wiring wiring_;
  Shape shape_{};
  Progress progress_;
  int root_;
  std::vector<ProofState> proofs_;
  std::optional<std::int64_t> min_credits_;
};

}  // namespace

CheckReport check_program(const Program& program, const CheckOptions& options) {
  return Examination(program, options).report();
}

}  // namespace teccl
