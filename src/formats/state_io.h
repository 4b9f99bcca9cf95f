// Copies states of a run to and from the bytes of a file, wherever the states lie.
#pragma once

#include "formats/tensor_io.h"
#include "tensor/state.h"

namespace jackscrew {

// Calls sink(bytes) with the bytes of a state in order, some at a time.
template <class Sink>
void write_state(Ops& ops, const StateRef& state, const Sink& sink) {
  if (state.remote) return state.remote->read(sink);
  write_tensor(ops, state.view, sink);
}

// Fills a state from bytes of exactly its size.
inline void read_state(Ops& ops, std::span<const uint8_t> from, const StateRef& state) {
  if (state.remote) return state.remote->write(from);
  read_tensor(ops, from, state.view);
}

}  // namespace jackscrew
