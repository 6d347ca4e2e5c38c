// Running calls as programs: round by round on the user's streams.
#pragma once

#include <vector>

#include "communicator.hpp"

namespace teccl::nccl {

struct Work {
  Call call;
  Communicator* communicator;
  std::uint32_t program;
};

// Enqueues the calls of one group, which are of different communicators or in the order in which all ranks make them.
ncclResult_t execute(const std::vector<Work>& group);

}  // namespace teccl::nccl
