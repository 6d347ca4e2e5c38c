#include "simulate_program.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "activity_log.hpp"

namespace teccl {

const char* cause_name(Cause cause) {
  static const char* names[] = {"start", "order", "dependency", "data", "credit", "link"};
  return names[static_cast<int>(cause)];
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int32_t kNone = ActivityLog::kNone;

// When something could happen at the earliest, and which constraint and activity (in the log) say so.
struct Readiness {
  double time = 0;
  Cause cause = Cause::start;
  std::int32_t record = kNone;

  void delay(double until, Cause why, std::int32_t by) {
    if (until > time) *this = {until, why, by};
  }
};

struct Transfer {  // on its way to, or in, the receiver's FIFO
  double head, arrival;
  std::int32_t record;  // the sender's
};

struct Connection {
  std::int32_t sender = kNone, receiver = kNone;
  std::vector<std::int32_t> links;
  std::vector<LinkFigures> figures;
  double alpha = 0, extra_alpha = 0;
  std::int64_t credits = 0;
  std::deque<Transfer> fifo;
  // The transfer that the sender prepares; at most one, for a threadblock does one thing at a time.
  double bytes = -1, transit = 0;
  std::vector<double> offset;
};

struct Link {
  using Waiter = std::pair<std::int64_t, std::int32_t>;  // order of request, connection
  double free = 0;
  std::int32_t user = kNone;  // the activity that had it last
  double wake = kNever;       // when its queue is looked at next
  std::priority_queue<Waiter, std::vector<Waiter>, std::greater<Waiter>> queue;
};

enum class Phase : std::int8_t { deciding, blocked, queued, moving, done };

struct Worker {  // a threadblock
  std::int32_t gpu = 0, threadblock = 0;
  const std::vector<Step>* steps = nullptr;
  std::int32_t send = kNone, recv = kNone;  // connections
  std::vector<std::int32_t> awaited;        // per step: the step of its dependency's threadblock that frees it
  std::int32_t step = 0, iteration = 0;
  std::int64_t moved = 0;                   // chunks of the step
  Phase phase = Phase::deciding;
  Cause waits_for = Cause::start;
  Readiness ready;
  std::int64_t raised = 0;                  // 1 + the last step that raised its flag, iterations counted on
  std::vector<std::int32_t> dependents;     // workers that wait for a flag
  double busy = 0;
};

class Simulation {
 public:
  Simulation(const Program& program, const Transport& transport) : transport_(transport) {
    links_.resize(transport.links.size());
    std::map<std::tuple<int, int, int>, std::int32_t> known;
    auto connection = [&](int src, int dst, int channel) {
      auto [place, fresh] = known.try_emplace({src, dst, channel}, static_cast<std::int32_t>(connections_.size()));
      if (fresh) {
        connections_.emplace_back();
        connections_.back().credits = transport.credits;
      }
      return place->second;
    };
    for (int gpu = 0; gpu < program.ranks(); ++gpu) {
      first_worker_.push_back(static_cast<std::int32_t>(workers_.size()));
      const auto& threadblocks = program.gpus[gpu].threadblocks;
      for (std::size_t tb = 0; tb < threadblocks.size(); ++tb) {
        const auto id = static_cast<std::int32_t>(workers_.size());
        Worker worker;
        worker.gpu = gpu;
        worker.threadblock = static_cast<std::int32_t>(tb);
        worker.steps = &threadblocks[tb].steps;
        if (threadblocks[tb].send_peer >= 0) {
          worker.send = connection(gpu, threadblocks[tb].send_peer, threadblocks[tb].channel);
          connect_sender(connections_[worker.send], id, transport.routes[gpu][tb]);
        }
        if (threadblocks[tb].recv_peer >= 0) {
          worker.recv = connection(threadblocks[tb].recv_peer, gpu, threadblocks[tb].channel);
          connections_[worker.recv].receiver = id;
        }
        for (const Step& step : threadblocks[tb].steps) worker.awaited.push_back(awaited_step(threadblocks, step));
        workers_.push_back(std::move(worker));
      }
    }
  }

  ProgramTiming run() {
    for (std::size_t id = 0; id < workers_.size(); ++id) resume(static_cast<std::int32_t>(id), 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      if (event.is_wake) wake(event.id);
      else proceed(event.id);
    }
    return timing();
  }

 private:
  struct Event {
    double time;
    bool is_wake;        // links free up before new requests of the same moment
    std::int64_t order;  // then first come, first served
    std::int32_t id;     // link or worker

    bool operator>(const Event& other) const {
      return std::tie(time, other.is_wake, order) > std::tie(other.time, is_wake, other.order);
    }
  };

  // -- setting up --------------------------------------------------------------------------------------

  void connect_sender(Connection& connection, std::int32_t worker, const Route& route) {
    connection.sender = worker;
    connection.links = route.links;
    connection.extra_alpha = route.extra_alpha_us;
    for (std::int32_t link : route.links) {
      connection.figures.push_back(transport_.links[link]);
      connection.alpha += transport_.links[link].alpha_us;
    }
    connection.offset.resize(route.links.size());
  }

  // The wait is for any flag at or after the step named, and a nop raises none. kNone: nothing ever frees it.
  static std::int32_t awaited_step(const std::vector<Threadblock>& threadblocks, const Step& step) {
    if (step.dep_tb < 0 || step.dep_tb >= static_cast<std::int32_t>(threadblocks.size())) return kNone;
    const auto& steps = threadblocks[step.dep_tb].steps;
    for (std::size_t i = std::max(step.dep_step, 0); i < steps.size(); ++i)
      if (steps[i].has_dep && steps[i].op != Op::nop) return static_cast<std::int32_t>(i);
    return kNone;
  }

  // -- threadblocks ------------------------------------------------------------------------------------

  void resume(std::int32_t id, double time) { events_.push({time, false, order_++, id}); }

  void proceed(std::int32_t id) {
    Worker& worker = workers_[id];
    if (worker.phase == Phase::moving) finish_transfer(worker);
    worker.phase = Phase::deciding;
    while (worker.phase == Phase::deciding) {
      if (worker.step == static_cast<std::int32_t>(worker.steps->size())) {
        worker.step = 0;
        if (worker.steps->empty() || ++worker.iteration == transport_.iterations) {
          worker.phase = Phase::done;
          return;
        }
      }
      const Step& step = (*worker.steps)[worker.step];
      if (worker.moved == 0 && !dependency_met(worker, step)) await_dependency(worker, id, step);
      else if (step.op == Op::nop || worker.moved >= step.count) finish_step(worker, step);
      else begin_transfer(worker, id, step);
    }
  }

  void finish_step(Worker& worker, const Step& step) {
    if (step.has_dep && step.op != Op::nop) {
      worker.raised = flag(worker, worker.iteration, worker.step);
      for (std::int32_t dependent : std::exchange(worker.dependents, {})) {
        workers_[dependent].ready.delay(now_, Cause::dependency, worker.ready.record);
        resume(dependent, now_);
      }
    }
    ++worker.step;
    worker.moved = 0;
  }

  static std::int64_t flag(const Worker& worker, std::int64_t iteration, std::int64_t step) {
    return iteration * static_cast<std::int64_t>(worker.steps->size()) + step + 1;
  }

  bool dependency_met(const Worker& worker, const Step& step) const {
    if (step.dep_tb < 0) return true;
    const std::int32_t awaited = worker.awaited[worker.step];
    if (awaited == kNone) return false;
    const Worker& other = workers_[first_worker_[worker.gpu] + step.dep_tb];
    return other.raised >= flag(other, worker.iteration, awaited);
  }

  void await_dependency(Worker& worker, std::int32_t id, const Step& step) {
    if (worker.awaited[worker.step] != kNone)
      workers_[first_worker_[worker.gpu] + step.dep_tb].dependents.push_back(id);
    block(worker, Cause::dependency);
  }

  static void block(Worker& worker, Cause cause) {
    worker.phase = Phase::blocked;
    worker.waits_for = cause;
  }

  // -- transfers ---------------------------------------------------------------------------------------

  double transfer_bytes(const Worker& worker) const {
    const std::int64_t left = (*worker.steps)[worker.step].count - worker.moved;
    const bool last = worker.iteration == transport_.iterations - 1;
    return static_cast<double>(std::min(left, transport_.chunks_per_transfer)) *
           (last ? transport_.last_slice_bytes : transport_.slice_bytes);
  }

  // Time that a threadblock needs to touch the bytes once.
  double pass_us(double bytes) const { return bytes / (1e3 * transport_.threadblock_GBps); }

  void begin_transfer(Worker& worker, std::int32_t id, const Step& step) {
    const OpTraits traits = op_traits(step.op);
    const double bytes = transfer_bytes(worker);
    if (traits.receives) {
      Connection& from = connections_[worker.recv];
      if (from.fifo.empty()) return block(worker, Cause::data);
      if (!traits.sends) return receive(worker, id, from.fifo.front(), bytes);
      const Transfer& incoming = from.fifo.front();
      if (incoming.arrival > worker.ready.time) {
        worker.busy += incoming.arrival - std::max(worker.ready.time, incoming.head);
        worker.ready.delay(incoming.arrival, Cause::data, incoming.record);
      }
      if (worker.ready.time > now_) {
        worker.phase = Phase::queued;
        return resume(id, worker.ready.time);
      }
    }
    if (traits.sends) return send(worker, bytes);
    move(worker, id, worker.ready, worker.ready.time, worker.ready.time + 2 * pass_us(bytes));
  }

  void receive(Worker& worker, std::int32_t id, const Transfer& incoming, double bytes) {
    const double start = std::max(worker.ready.time, incoming.head);
    const double end = std::max(incoming.arrival, start + pass_us(bytes));
    Readiness why = worker.ready;
    if (start > worker.ready.time || end > worker.ready.time + pass_us(bytes)) why = {start, Cause::data, incoming.record};
    move(worker, id, why, start, end);
  }

  void send(Worker& worker, double bytes) {
    Connection& to = connections_[worker.send];
    if (to.credits == 0) return block(worker, Cause::credit);
    --to.credits;
    if (bytes != to.bytes) {
      to.bytes = bytes;
      const double transit = cut_through(to.figures.data(), to.figures.size(), bytes, to.offset.data());
      to.transit = std::max(transit, to.alpha + pass_us(bytes));
    }
    worker.phase = Phase::queued;
    if (const auto blocker = blocking_link(to); blocker == kNone) grant(worker.send);
    else enqueue(blocker, {order_++, worker.send});
  }

  // The worker is busy with one transfer from `start` to `end`.
  std::int32_t move(Worker& worker, std::int32_t id, const Readiness& why, double start, double end) {
    const std::int32_t record =
        log_.add({worker.gpu, worker.threadblock, worker.step, worker.iteration, start, end, why.cause}, why.record);
    worker.busy += end - start;
    worker.ready = {end, Cause::order, record};
    worker.phase = Phase::moving;
    resume(id, end);
    return record;
  }

  void finish_transfer(Worker& worker) {
    const Step& step = (*worker.steps)[worker.step];
    worker.moved += std::min(step.count - worker.moved, transport_.chunks_per_transfer);
    if (!op_traits(step.op).receives) return;
    Connection& from = connections_[worker.recv];
    from.fifo.pop_front();
    ++from.credits;
    awaken(from.sender, Cause::credit, worker.ready.record);
  }

  void awaken(std::int32_t id, Cause cause, std::int32_t record) {
    if (id == kNone) return;
    Worker& worker = workers_[id];
    if (worker.phase != Phase::blocked || worker.waits_for != cause) return;
    // Data is on its way only: its arrival decides later.
    if (cause != Cause::data) worker.ready.delay(now_, cause, record);
    worker.phase = Phase::queued;
    resume(id, now_);
  }

  // -- links -------------------------------------------------------------------------------------------

  double earliest_start(const Connection& connection, std::size_t k) const {
    return links_[connection.links[k]].free - connection.offset[k];
  }

  // The link that holds the connection's transfer up longest, kNone if it can start now.
  std::int32_t blocking_link(const Connection& connection) const {
    std::int32_t blocker = kNone;
    double earliest = now_;
    for (std::size_t k = 0; k < connection.links.size(); ++k) {
      if (earliest_start(connection, k) > earliest) {
        earliest = earliest_start(connection, k);
        blocker = connection.links[k];
      }
    }
    return blocker;
  }

  void enqueue(std::int32_t link, Link::Waiter waiter) {
    links_[link].queue.push(waiter);
    arm(link);
  }

  // See to it that the queue is looked at when its first transfer could have the link.
  void arm(std::int32_t id) {
    Link& link = links_[id];
    if (link.queue.empty()) return;
    const Connection& first = connections_[link.queue.top().second];
    const auto k = std::find(first.links.begin(), first.links.end(), id) - first.links.begin();
    const double time = std::max(now_, earliest_start(first, static_cast<std::size_t>(k)));
    if (time < link.wake) {
      link.wake = time;
      events_.push({time, true, order_++, id});
    }
  }

  void wake(std::int32_t id) {
    Link& link = links_[id];
    if (link.wake != now_) return;  // it was armed again for an earlier time
    link.wake = kNever;
    while (!link.queue.empty()) {
      const Link::Waiter waiter = link.queue.top();
      const std::int32_t blocker = blocking_link(connections_[waiter.second]);
      if (blocker == id) break;
      link.queue.pop();
      if (blocker == kNone) {
        workers_[connections_[waiter.second].sender].ready.delay(now_, Cause::link, link.user);
        grant(waiter.second);
      } else {
        enqueue(blocker, waiter);
      }
    }
    arm(id);
  }

  void grant(std::int32_t id) {
    Connection& connection = connections_[id];
    Worker& sender = workers_[connection.sender];
    const double injected = std::max(occupancy_us(connection.bytes, connection.figures.front()), pass_us(connection.bytes));
    const std::int32_t record = move(sender, connection.sender, sender.ready, now_, now_ + injected);
    for (std::size_t k = 0; k < connection.links.size(); ++k) {
      Link& link = links_[connection.links[k]];
      link.free = now_ + connection.offset[k] + occupancy_us(connection.bytes, connection.figures[k]);
      link.user = record;
    }
    connection.fifo.push_back({now_ + connection.alpha + connection.extra_alpha,
                               now_ + connection.transit + connection.extra_alpha, record});
    awaken(connection.receiver, Cause::data, record);
  }

  // -- the answer --------------------------------------------------------------------------------------

  ProgramTiming timing() const {
    ProgramTiming timing{0, {}, {}, {}, {}};
    const Worker* last = nullptr;
    for (const Worker& worker : workers_) {
      timing.threadblocks.push_back({worker.gpu, worker.threadblock, worker.busy, worker.ready.time});
      if (worker.phase != Phase::done)
        timing.blocked.push_back({worker.gpu, worker.threadblock, worker.step, worker.iteration, worker.waits_for});
      if (last == nullptr || worker.ready.time > last->ready.time) last = &worker;
    }
    if (last == nullptr) return timing;
    timing.finish_us = last->ready.time;
    timing.critical_path = log_.path_to(last->ready.record);
    if (transport_.timeline) timing.timeline = log_.all();
    return timing;
  }

  const Transport& transport_;
  std::vector<Worker> workers_;
  std::vector<std::int32_t> first_worker_;  // of each GPU
  std::vector<Connection> connections_;
  std::vector<Link> links_;
  ActivityLog log_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::int64_t order_ = 0;
  double now_ = 0;
};

}  // namespace

ProgramTiming simulate_program(const Program& program, const Transport& transport) {
  return Simulation(program, transport).run();
}

}  // namespace teccl
