// The kernel's code on the host: a thread for each threadblock, all at once. It shows that the code is right where there
// is no GPU; csrc/interpreter_threads.cpp is the fast way to execute a program on a CPU.
#pragma once

#include <memory>

#include "prepared.hpp"

namespace teccl::device {

class HostRun {
 public:
  // More threadblocks than this are refused: each is a thread.
  static constexpr std::size_t kMostBlocks = 2048;

  HostRun(Prepared prepared);
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;

  struct Outcome {
    double seconds;
    std::vector<std::string> blocked;  // empty: every threadblock finished and every message was taken
  };
  // Runs the program once. After a run that was blocked it cannot run again.
  Outcome run(double timeout);

  const std::vector<StepTime>& times() const { return times_; }
  const Prepared& prepared() const { return prepared_; }

 private:
  Prepared prepared_;
  std::vector<std::vector<std::uint64_t>> arenas_;
  std::vector<FlatLine> lines_;
  std::vector<std::uint64_t> signalled_, finished_;
  std::uint64_t stop_ = 0;
  std::vector<StepTime> times_;
  std::uint64_t runs_ = 0;
  bool broken_ = false;
};

}  // namespace teccl::device
