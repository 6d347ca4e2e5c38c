#include "ledger.hpp"

#include <strings.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace teccl::nccl {

namespace {

void say(const std::string& line) {
  const std::string whole = "teccl: pid " + std::to_string(getpid()) + ": " + line + "\n";  // one write, beside others'
  [[maybe_unused]] const auto written = write(STDERR_FILENO, whole.data(), whole.size());
}

}  // namespace

const char* reason(Outcome outcome) {
  static const char* const reasons[outcomes] = {
      "custom",
      "no programs (TECCL_NCCL_PROGRAMS is not set)",
      "its programs cannot be used",
      "a version of NCCL that is not known",
      "no CUDA driver",
      "the programs are for another number of ranks",
      "the programs are for ranks on other hosts",
      "the ranks have different programs",
      "a non-blocking communicator",
      "a communicator made some other way",
      "a communicator that has been ended",
      "no program for this size or root",
      "no elements",
      "an unknown type",
      "an operator of the user's",
      "no reduction kernel",
      "alltoall in place",
      "more scratch than TECCL_NCCL_SCRATCH allows",
  };
  return reasons[std::size_t(outcome)];
}

Ledger& ledger() {
  static Ledger& only = *new Ledger;  // never destroyed: calls may come while the process ends
  return only;
}

bool informing() {
  static const bool wanted = [] {
    const char* level = std::getenv("TECCL_DEBUG");
    return level != nullptr && (strcasecmp(level, "INFO") == 0 || strcasecmp(level, "TRACE") == 0);
  }();
  return wanted;
}

void inform(const std::string& line) {
  if (informing()) say(line);
}

void warn(const std::string& line) { say(line); }

void print_summary() {
  if (!informing()) return;
  for (std::size_t collective = 0; collective < collectives; ++collective) {
    const auto& counts = ledger().counts_[collective];
    std::string text;
    for (std::size_t outcome = 0; outcome < outcomes; ++outcome) {
      const std::uint64_t number = counts[outcome].load(std::memory_order_relaxed);
      if (number == 0) continue;
      text += text.empty() ? "" : ", ";
      text += std::to_string(number) +
              (outcome == 0 ? " custom" : std::string(" delegated (") + reason(Outcome(outcome)) + ")");
    }
    if (!text.empty()) say(std::string("summary: ") + collective_names[collective] + ": " + text);
  }
}

namespace {
__attribute__((destructor)) void at_exit() { print_summary(); }
}  // namespace

}  // namespace teccl::nccl
