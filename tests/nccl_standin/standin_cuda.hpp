// What the stand-in of NCCL needs of the stand-in of CUDA.
#pragma once

#include <functional>

#include "abi.h"

namespace standin {

// Enqueues work on a stream, or records it where the stream is being captured.
void enqueue(cudaStream_t stream, std::function<void()> work);
int current_device();  // −1: no context is current
// Ends the process, as a misuse that real GPUs would punish at random.
[[noreturn]] void misuse(const char* what);

}  // namespace standin
