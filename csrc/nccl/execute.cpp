#include "execute.hpp"

#include <algorithm>
#include <string>

namespace teccl::nccl {

namespace {

constexpr std::size_t alignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// A call with its program and the addresses of its buffers.
class Running {
 public:
  explicit Running(const Work& work)
      : call_(work.call),
        communicator_(*work.communicator),
        program_(communicator_.programs->programs()[work.program]),
        mine_(communicator_.mine[work.program]),
        element_(element_bytes(call_.type)) {}

  std::uint32_t rounds() const { return mine_.nrounds; }

  bool has_messages(std::uint32_t round) const {
    return round < mine_.nrounds && mine_.rounds[round].messages > mine_.rounds[round].local;
  }

  // Finds the buffers, and brings the input to where the program may have it.
  ncclResult_t begin() {
    const auto nranks = static_cast<std::size_t>(communicator_.nranks);
    const bool rooted = call_.root >= 0, root = call_.root == communicator_.rank;
    const std::size_t input = call_.count * (has_shared_input(call_.collective) ? nranks : 1);
    const std::size_t output = call_.count * (has_shared_output(call_.collective) ? nranks : 1);
    const bool scales = averages() && !is_integer(call_.type);
    // Where only the root has a buffer, the others' programs must not touch what they were given.
    const bool no_input = rooted && !root && !is_reducing(call_.collective) && call_.collective != Collective::gather;
    const bool no_output = rooted && !root && (is_reducing(call_.collective) || call_.collective == Collective::gather);
    const bool own_input =
        mine_.uses_input && (no_input || mine_.writes_input || scales || (in_place() && !program_.in_place));
    const bool own_output = mine_.uses_output && no_output;

    width_ = aligned((call_.count / program_.parts + 1) * element_);
    const std::size_t places = mine_.scratch * width_;
    const std::size_t inputs = own_input ? aligned(input * element_) : 0;
    const std::size_t outputs = own_output ? aligned(output * element_) : 0;
    char* scratch = nullptr;
    if (places + inputs + outputs > 0) {
      scratch = communicator_.scratch(call_.stream, places + inputs + outputs);
      if (scratch == nullptr) {
        warn("rank " + std::to_string(communicator_.rank) + ": no device memory for " +
             std::to_string(places + inputs + outputs) + " bytes of scratch");
        return ncclUnhandledCudaError;
      }
    }
    buffers_[int(Buffer::scratch)] = scratch;
    buffers_[int(Buffer::input)] =
        own_input ? scratch + places : const_cast<char*>(static_cast<const char*>(call_.send));
    buffers_[int(Buffer::output)] = own_output ? scratch + places + inputs : static_cast<char*>(call_.receive);
    if (!own_input || no_input) return ncclSuccess;
    if (scales)
      return result(communicator_.reduction.scaled(scratch + places, call_.send, input, call_.type,
                                                   communicator_.nranks, call_.stream));
    return copied(scratch + places, static_cast<const char*>(call_.send), input * element_);
  }

  ncclResult_t local(std::uint32_t round) const {
    ncclResult_t status = ncclSuccess;
    if (round >= mine_.nrounds) return status;
    for (std::uint32_t number = first(round); number < mine_.rounds[round].local && status == ncclSuccess; ++number) {
      const Act& act = mine_.acts[number];
      const std::size_t elements = length(act);
      char* at = address(act.at_buffer, act.at);
      const char* source = address(act.source_buffer, act.source);
      if (elements == 0) continue;
      if (act.kind == Kind::copy)
        status = copied(at, source, elements * element_);
      else
        status = result(communicator_.reduction.combined(at, source, address(act.other_buffer, act.other), elements,
                                                         call_.type, call_.op, call_.stream));
    }
    return status;
  }

  ncclResult_t messages(std::uint32_t round) const {
    ncclResult_t status = ncclSuccess;
    if (round >= mine_.nrounds) return status;
    const Real& nccl = real();
    const Round& one = mine_.rounds[round];
    for (std::uint32_t number = one.local; number < one.messages && status == ncclSuccess; ++number) {
      const Act& act = mine_.acts[number];
      const std::size_t elements = length(act);  // the same at both ends
      if (elements == 0) continue;
      status = act.kind == Kind::send ? nccl.ncclSend(address(act.source_buffer, act.source), elements, call_.type,
                                                      act.peer, call_.communicator, call_.stream)
                                      : nccl.ncclRecv(address(act.at_buffer, act.at), elements, call_.type, act.peer,
                                                      call_.communicator, call_.stream);
    }
    return status;
  }

  ncclResult_t end() const {
    const bool here = call_.root < 0 || call_.root == communicator_.rank;
    if (!averages() || !is_integer(call_.type) || !here) return ncclSuccess;
    return result(communicator_.reduction.scaled(call_.receive, call_.receive, call_.count, call_.type,
                                                 communicator_.nranks, call_.stream));
  }

  const Communicator& communicator() const { return communicator_; }

 private:
  bool averages() const { return call_.op == ncclAvg && is_reducing(call_.collective); }

  // As NCCL defines it for each collective.
  bool in_place() const {
    const char* send = static_cast<const char*>(call_.send);
    const char* receive = static_cast<const char*>(call_.receive);
    const std::size_t offset = static_cast<std::size_t>(communicator_.rank) * call_.count * element_;
    switch (call_.collective) {
      case Collective::allgather:
      case Collective::gather:
        return send == receive + offset;
      case Collective::reduce_scatter:
      case Collective::scatter:
        return receive == send + offset;
      default:
        return send == receive;
    }
  }

  std::uint32_t first(std::uint32_t round) const { return round == 0 ? 0 : mine_.rounds[round - 1].messages; }

  // Elements before a number of parts, in shares one after the other.
  std::size_t before(std::uint32_t parts) const {
    return parts / program_.parts * call_.count + call_.count * (parts % program_.parts) / program_.parts;
  }
  std::size_t length(const Act& act) const { return before(act.part + act.count) - before(act.part); }

  char* address(Buffer buffer, std::uint32_t position) const {
    if (buffer == Buffer::none) return nullptr;
    return buffers_[int(buffer)] + (buffer == Buffer::scratch ? position * width_ : before(position) * element_);
  }

  ncclResult_t copied(char* at, const char* source, std::size_t bytes) const {
    if (at == source) return ncclSuccess;
    return result(cuda()->cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(at), reinterpret_cast<CUdeviceptr>(source), bytes,
                                        call_.stream));
  }

  ncclResult_t result(CUresult status) const {
    if (status == 0) return ncclSuccess;
    warn("rank " + std::to_string(communicator_.rank) + ": CUDA error " + std::to_string(status) + " in " +
         collective_names[std::size_t(call_.collective)]);
    return ncclUnhandledCudaError;
  }

  const Call& call_;
  Communicator& communicator_;
  const Program& program_;
  const RankProgram& mine_;
  std::size_t element_;
  std::size_t width_ = 0;  // of a place in scratch, in bytes
  char* buffers_[3] = {};
};

// Acts on a communicator's device, whichever is current.
template <typename ACTION>
ncclResult_t on_device(const Communicator& communicator, ACTION action) {
  CUcontext before = nullptr;
  if (cuda()->cuCtxPushCurrent(communicator.context) != 0) return ncclUnhandledCudaError;
  const ncclResult_t result = action();
  cuda()->cuCtxPopCurrent(&before);
  return result;
}

// Calls of different communicators go through their rounds together: one thread may hold several ranks of each.
ncclResult_t execute_together(std::vector<Running>& calls) {
  std::uint32_t rounds = 0;
  for (Running& call : calls) {
    const ncclResult_t result = on_device(call.communicator(), [&] { return call.begin(); });
    if (result != ncclSuccess) return result;
    rounds = std::max(rounds, call.rounds());
  }
  for (std::uint32_t round = 0; round < rounds; ++round) {
    bool any = false;
    for (Running& call : calls) {
      const ncclResult_t result = on_device(call.communicator(), [&] { return call.local(round); });
      if (result != ncclSuccess) return result;
      any = any || call.has_messages(round);
    }
    if (!any) continue;
    ncclResult_t result = real().ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (Running& call : calls)
      if (result == ncclSuccess) result = on_device(call.communicator(), [&] { return call.messages(round); });
    const ncclResult_t ended = real().ncclGroupEnd();
    if (result != ncclSuccess || ended != ncclSuccess) return result != ncclSuccess ? result : ended;
  }
  for (Running& call : calls) {
    const ncclResult_t result = on_device(call.communicator(), [&] { return call.end(); });
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

// In the calls' communicators while this lives, if none of them has ended.
class Entered {
 public:
  explicit Entered(const std::vector<Work>& group) {
    for (const Work& work : group) {
      all_ = work.communicator->enter();
      if (!all_) return;
      inside_.push_back(work.communicator);
    }
  }
  ~Entered() {
    for (Communicator* communicator : inside_) communicator->leave();
  }
  Entered(const Entered&) = delete;
  bool all() const { return all_; }

 private:
  std::vector<Communicator*> inside_;
  bool all_ = true;
};

}  // namespace

ncclResult_t execute(const std::vector<Work>& group) {
  const Entered entered(group);
  if (!entered.all()) return ncclInvalidUsage;
  // The first calls of all communicators, then their second ones, and so on.
  std::vector<bool> done(group.size(), false);
  for (std::size_t left = group.size(); left > 0;) {
    std::vector<Running> together;
    std::vector<const Communicator*> taken;
    for (std::size_t number = 0; number < group.size(); ++number) {
      const Communicator* communicator = group[number].communicator;
      if (done[number] || std::find(taken.begin(), taken.end(), communicator) != taken.end()) continue;
      taken.push_back(communicator);
      together.emplace_back(group[number]);
      done[number] = true;
      --left;
    }
    const ncclResult_t result = execute_together(together);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace teccl::nccl
