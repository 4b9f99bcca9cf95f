#include "kernels/cuda/transfer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/op_arguments.h"

namespace jackscrew::cuda {

namespace {

// Large enough to fill a bus, small enough that the first piece is soon on its way.
constexpr int64_t kBufferBytes = int64_t{4} << 20;
// 64 Ki token ids; five or six tensors a micro-batch.
constexpr int64_t kSmallBytes = int64_t{256} << 10;
constexpr size_t kSmallBuffers = 32;

bool on_device(const Tensor& tensor) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, tensor.raw()), "looking up an address");
  return attributes.type == cudaMemoryTypeDevice;
}

void copy_rows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
               int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(to) + row * to_pitch,
                static_cast<const uint8_t*>(from) + row * from_pitch, static_cast<size_t>(width));
  }
}

// A single row may be longer than the runtime lets rows be apart, 2 GiB.
void issue(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
           int64_t rows, cudaStream_t stream) {
  if (rows == 1) {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(width), cudaMemcpyDefault, stream),
          "a copy");
    return;
  }
  check(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                          static_cast<size_t>(width), static_cast<size_t>(rows), cudaMemcpyDefault,
                          stream),
        "a copy");
}

// A recording would hold the buffer, not the data that goes through it.
void refuse_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "looking at a stream");
  if (status != cudaStreamCaptureStatusNone) {
    fail(ErrorKind::generic, "a copy from or to the host cannot be recorded");
  }
}

}  // namespace

// Part of a copy, in bytes.
struct Transfer::Piece {
  uint8_t* to;
  const uint8_t* from;
  int64_t to_pitch, from_pitch, width, rows;
};

// Pieces of up to `most` bytes: whole rows where they fit, else parts of rows.
template <class Body>
void Transfer::for_pieces(const Tensor& to, const Tensor& from, int64_t most, const Body& body) {
  const int64_t size = dtype_size(to.dtype());
  const bool flat = to.contiguous() && from.contiguous();
  const int64_t rows = flat ? 1 : to.rows();
  const int64_t width = (flat ? to.size() : to.cols()) * size;
  // A single row may have any stride, that of a tensor without rows among them.
  const int64_t to_pitch = flat ? width : to.row_stride() * size;
  const int64_t from_pitch = flat ? width : from.row_stride() * size;
  const int64_t columns = std::min(width, most);
  const int64_t at_once = columns < width ? 1 : most / columns;
  for (int64_t row = 0; row < rows; row += at_once) {
    for (int64_t column = 0; column < width; column += columns) {
      body(Piece{static_cast<uint8_t*>(to.raw()) + row * to_pitch + column,
                 static_cast<const uint8_t*>(from.raw()) + row * from_pitch + column, to_pitch,
                 from_pitch, std::min(columns, width - column), std::min(at_once, rows - row)});
    }
  }
}

Transfer::Ring::Ring(size_t count, int64_t bytes) : buffers_(count) {
  for (Buffer& buffer : buffers_) {
    check(cudaMallocHost(&buffer.data, static_cast<size_t>(bytes)), "pinning memory for copies",
          "the machine's own memory is short: close other programs, or raise ulimit -l");
    check(cudaEventCreateWithFlags(&buffer.done, cudaEventDisableTiming), "making an event");
  }
}

Transfer::Ring::~Ring() {
  for (const Buffer& buffer : buffers_) {
    cudaEventDestroy(buffer.done);
    cudaFreeHost(buffer.data);
  }
}

const Transfer::Buffer& Transfer::Ring::next() {
  const Buffer& buffer = buffers_[next_++ % buffers_.size()];
  check(cudaEventSynchronize(buffer.done), "waiting for a copy");
  return buffer;
}

Transfer::Transfer() : small_(kSmallBuffers, kSmallBytes), large_(2, kBufferBytes) {}

void Transfer::copy(const Tensor& to, const Tensor& from, cudaStream_t stream) {
  check_copy(to, from);
  if (to.size() == 0) return;
  const bool up = on_device(to);
  const bool down = on_device(from);
  if (up && !down) return upload(to, from, stream);
  if (!up && down) return download(to, from, stream);
  for_pieces(to, from, std::numeric_limits<int64_t>::max(), [&](const Piece& piece) {
    if (up) {
      issue(piece.to, piece.to_pitch, piece.from, piece.from_pitch, piece.width, piece.rows,
            stream);
    } else {
      copy_rows(piece.to, piece.to_pitch, piece.from, piece.from_pitch, piece.width, piece.rows);
    }
  });
}

void Transfer::upload(const Tensor& to, const Tensor& from, cudaStream_t stream) {
  refuse_recording(stream);
  Ring& ring = to.bytes() <= kSmallBytes ? small_ : large_;
  for_pieces(to, from, kBufferBytes, [&](const Piece& piece) {
    const Buffer& buffer = ring.next();
    copy_rows(buffer.data, piece.width, piece.from, piece.from_pitch, piece.width, piece.rows);
    issue(piece.to, piece.to_pitch, buffer.data, piece.width, piece.width, piece.rows, stream);
    check(cudaEventRecord(buffer.done, stream), "marking a copy");
  });
}

void Transfer::download(const Tensor& to, const Tensor& from, cudaStream_t stream) {
  refuse_recording(stream);
  std::optional<std::pair<Piece, const Buffer*>> waiting;
  const auto finish = [&] {
    if (!waiting) return;
    const auto& [piece, buffer] = *waiting;
    check(cudaEventSynchronize(buffer->done), "waiting for a copy");
    copy_rows(piece.to, piece.to_pitch, buffer->data, piece.width, piece.width, piece.rows);
  };
  for_pieces(to, from, kBufferBytes, [&](const Piece& piece) {
    const Buffer& buffer = large_.next();
    issue(buffer.data, piece.width, piece.from, piece.from_pitch, piece.width, piece.rows, stream);
    check(cudaEventRecord(buffer.done, stream), "marking a copy");
    finish();
    waiting = {piece, &buffer};
  });
  finish();
}

}  // namespace jackscrew::cuda
