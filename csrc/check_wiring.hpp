// A program laid flat, with every step joined to the steps it waits for, hears from and speaks to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check.hpp"

namespace teccl {

// Steps and threadblocks are numbered through the whole program; −1 is none.
struct Wiring {
  const Program* program = nullptr;

  std::vector<std::int32_t> first_tb;    // of each rank, and one past the last
  std::vector<std::int32_t> first_step;  // of each threadblock, and one past the last
  std::vector<std::int32_t> rank_of_tb;
  std::vector<std::int32_t> tb_of_step;
  std::vector<const Step*> steps;

  std::vector<std::int32_t> out_connection;       // of each threadblock
  std::vector<std::int32_t> in_connection;        // of each threadblock
  std::vector<std::int32_t> connection_sender;    // threadblock of each connection
  std::vector<std::int32_t> connection_receiver;  // threadblock of each connection
  std::vector<std::int32_t> sender_of;            // of each step that receives: the step that sends
  std::vector<std::int32_t> receiver_of;          // of each step that sends: the step that receives
  std::vector<std::int32_t> waits_for;            // of each step: the step that raises the awaited flag

  std::int32_t tb_count() const { return static_cast<std::int32_t>(rank_of_tb.size()); }
  std::int32_t step_count() const { return static_cast<std::int32_t>(steps.size()); }
  std::int32_t rank_of_step(std::int32_t step) const { return rank_of_tb[tb_of_step[step]]; }
  const Threadblock& threadblock(std::int32_t tb) const;
  Place place_of_tb(std::int32_t tb) const;
  Place place_of(std::int32_t step) const;
  std::string name_of_tb(std::int32_t tb) const;  // "gpu 1 tb 2"
  std::string name_of(std::int32_t step) const;   // "gpu 1 tb 2 step 3"
};

Wiring lay_flat(const Program& program);

// Each of these fills its part of the wiring and reports what stands in the way. `connect` before `match`.
void connect(Wiring& wiring, Findings& findings);
void match(Wiring& wiring, Findings& findings);
void resolve_dependencies(Wiring& wiring, const CheckOptions& options, Findings& findings);

}  // namespace teccl
