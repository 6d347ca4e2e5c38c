#include "host.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "interpret.hpp"

namespace teccl::device {

HostRun::HostRun(Prepared prepared)
    : prepared_(std::move(prepared)),
      signalled_(prepared_.blocks.size()),
      finished_(prepared_.ranks.size()),
      times_(prepared_.steps.size()) {
  if (prepared_.blocks.size() > kMostBlocks)
    throw std::invalid_argument(std::to_string(prepared_.blocks.size()) + " threadblocks, and the host runs at most " +
                                std::to_string(kMostBlocks) + " as threads");
  std::vector<std::byte*> begin;
  for (const Arena& arena : prepared_.arenas) {
    auto& words = arenas_.emplace_back((arena.bytes + kLineBytes) / 8 + kLineBytes / 8);
    const auto address = reinterpret_cast<std::uintptr_t>(words.data());
    begin.push_back(reinterpret_cast<std::byte*>(words.data()) + (kLineBytes - address % kLineBytes) % kLineBytes);
  }
  lines_ = prepared_.lines_in(begin);
}

HostRun::Outcome HostRun::run(double timeout) {
  if (broken_) throw std::invalid_argument("an earlier run was blocked: messages are left over; prepare a new one");
  std::vector<Stuck> stuck(prepared_.blocks.size());
  Job job = prepared_.job();
  job.steps = prepared_.steps.data();
  job.blocks = prepared_.blocks.data();
  job.lines = lines_.data();
  job.ranks = prepared_.ranks.data();
  job.signalled = signalled_.data();
  job.finished = finished_.data();
  job.stop = &stop_;
  job.stuck = stuck.data();
  job.times = times_.data();
  job.run = runs_++;
  job.timeout_ns = static_cast<std::uint64_t>(timeout * 1e9);

  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (std::int32_t block = 0; block < job.nblocks; ++block)
    threads.emplace_back([&job, block] { Interpreter(job, block, Group{}).run(); });
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Outcome outcome{seconds, prepared_.lines_of(stuck)};
  broken_ = !outcome.blocked.empty();
  return outcome;
}

}  // namespace teccl::device
