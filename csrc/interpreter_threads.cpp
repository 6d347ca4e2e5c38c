// All ranks of a program in one process: workers that own ranks, and a watchdog.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "interpreter.hpp"

namespace teccl {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Waiting that is quick to notice work and soon leaves the core to others.
class Patience {
 public:
  void reset() { idle_ = 0; }
  void wait() {
    ++idle_;
    if (idle_ < 16) return;
    if (idle_ < 2000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int idle_ = 0;
};

// What workers and the watchdog share.
struct Shift {
  std::atomic<bool> started{false};
  std::atomic<bool> stopped{false};
  std::mutex mutex;
  std::condition_variable all_done;
  std::size_t working = 0;           // under mutex
  Clock::time_point last_finish{};   // under mutex
};

void work(const std::vector<Rank*>& mine, Shift& shift) {
  while (!shift.started.load(std::memory_order_acquire)) std::this_thread::yield();
  Patience patience;
  bool unfinished = true;
  while (unfinished && !shift.stopped.load(std::memory_order_relaxed)) {
    std::int64_t done = 0;
    unfinished = false;
    for (Rank* rank : mine) {
      if (rank->finished()) continue;
      done += rank->advance();
      unfinished |= !rank->finished();
    }
    done > 0 ? patience.reset() : patience.wait();
  }
  std::lock_guard<std::mutex> lock(shift.mutex);
  shift.last_finish = std::max(shift.last_finish, Clock::now());
  if (--shift.working == 0) shift.all_done.notify_one();
}

}  // namespace

World::World(const Setting& setting, const std::vector<Memory>& memory) : setting_(setting) {
  require_executable(setting_, memory);
  for (const auto& [connection, traffic] : traffic_of(setting_))
    fifos_[connection] = std::make_unique<Fifo>(setting_.slots, traffic.longest_bytes);
  const auto fifo = [this](const Connection& connection) { return fifos_.at(connection).get(); };
  for (std::size_t rank = 0; rank < memory.size(); ++rank)
    ranks_.push_back(std::make_unique<Rank>(setting_, static_cast<int>(rank), memory[rank], fifo));
}

World::Outcome World::run(std::size_t workers, double timeout, const std::function<bool()>& interrupted) {
  for (auto& rank : ranks_) rank->restart();
  workers = std::clamp<std::size_t>(workers, 1, ranks_.size());
  std::vector<std::vector<Rank*>> owned(workers);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) owned[rank % workers].push_back(ranks_[rank].get());

  Shift shift;
  shift.working = workers;
  std::vector<std::thread> threads;
  for (const auto& mine : owned) threads.emplace_back(work, std::cref(mine), std::ref(shift));
  const auto start = Clock::now();
  shift.started.store(true, std::memory_order_release);

  bool stop_asked = false;
  std::uint64_t seen = progress();
  auto moved = start;
  std::unique_lock<std::mutex> lock(shift.mutex);
  while (!shift.all_done.wait_for(lock, std::chrono::milliseconds(20), [&] { return shift.working == 0; })) {
    lock.unlock();
    const auto now = Clock::now();
    if (const std::uint64_t count = progress(); count != seen) {
      seen = count;
      moved = now;
    }
    stop_asked = stop_asked || interrupted();
    if (stop_asked || seconds_between(moved, now) > timeout) shift.stopped.store(true, std::memory_order_relaxed);
    lock.lock();
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  return {seconds_between(start, shift.last_finish), stuck(), stop_asked};
}

std::uint64_t World::progress() const {
  std::uint64_t total = 0;
  for (const auto& rank : ranks_) total += rank->progress();
  return total;
}

std::vector<std::string> World::stuck() const {
  std::vector<std::string> lines;
  for (const auto& rank : ranks_)
    for (std::string& line : rank->blocked()) lines.push_back(std::move(line));
  return lines.empty() ? never_received(setting_) : lines;
}

std::size_t World::fifo_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [connection, fifo] : fifos_) bytes += fifo->slots() * fifo->slot_bytes();
  return bytes;
}

}  // namespace teccl
