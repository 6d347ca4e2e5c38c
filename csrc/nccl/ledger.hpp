// What ran as a program and what was left to NCCL, and why: counted, and said with TECCL_DEBUG=INFO.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "programs.hpp"

namespace teccl::nccl {

enum class Outcome : std::uint32_t {
  custom,
  no_programs,
  unreadable,
  unknown_version,
  no_driver,
  other_nranks,
  other_hosts,
  others_differ,
  non_blocking,
  unknown_communicator,
  ended,
  no_program,
  no_elements,
  unknown_type,
  user_operator,
  no_kernel,
  in_place_alltoall,
  too_much_scratch,
};
constexpr std::size_t outcomes = 18;
const char* reason(Outcome outcome);

class Ledger {
 public:
  // Whether it is the first of its kind, which is worth a line.
  bool count(Collective collective, Outcome outcome) {
    return counts_[std::size_t(collective)][std::size_t(outcome)].fetch_add(1, std::memory_order_relaxed) == 0;
  }

 private:
  friend void print_summary();
  std::array<std::array<std::atomic<std::uint64_t>, outcomes>, collectives> counts_{};
};
Ledger& ledger();  // the process'

bool informing();                      // TECCL_DEBUG=INFO
void inform(const std::string& line);  // where informing
void warn(const std::string& line);    // always

}  // namespace teccl::nccl
