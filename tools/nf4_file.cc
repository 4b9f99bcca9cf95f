// Converts the matrices of a model directory or a GGUF file to NF4 as bitsandbytes lays it out, or
// to f32: tools/parity.py holds what it reads and writes against bitsandbytes and gguf.
//   nf4_file FROM TO_DIRECTORY nf4|nf4_double|f32
#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "formats/bitsandbytes.h"
#include "formats/gguf.h"
#include "formats/tensor_io.h"
#include "kernels/cpu/cpu_ops.h"
#include "quant/weight.h"

namespace jackscrew {
namespace {

std::vector<TensorBytes> converted(Ops& ops, const StoredTensor& stored, const Format& format) {
  Memory memory("host", make_host_backing(), 0);
  Arena staging(memory, Purpose::staging, int64_t{64} << 20);
  const int64_t rows = stored.shape[0];
  const int64_t cols = stored.shape[1];
  Weight weight(memory, {stored.name, rows, cols}, format);
  weight.load(ops, stored, staging);
  if (weight.as_f32().empty()) {
    return nf4_tensors(stored.name, format, weight.storage(), "float32");
  }
  const auto* begin = weight.storage().bytes.data<uint8_t>();
  return {{{stored.name, "F32", stored.shape}, {begin, begin + weight.storage().bytes.bytes()}}};
}

void run(const fs::path& from, const fs::path& to, const std::string& name) {
  const auto ops = make_cpu_ops(1, detect_isa());
  std::vector<TensorBytes> tensors;
  std::vector<SafetensorsSpec> specs;
  const auto convert = [&](const StoredTensor& stored) {
    for (TensorBytes& part : converted(*ops, stored, find_format(name))) {
      specs.push_back(part.spec);
      tensors.push_back(std::move(part));
    }
  };
  if (from.extension() == ".gguf") {
    const GgufFile file(from);
    for (const GgufTensor& tensor : file.tensors()) {
      convert({tensor.name, unowned(find_format(tensor.format)), tensor.shape, tensor.bytes});
    }
  } else {
    const SafetensorsSource source(from);
    for (const std::string& tensor : source.names()) convert(*source.find(tensor));
  }
  fs::create_directories(to);
  ShardedSafetensorsWriter writer(to, specs);
  for (const TensorBytes& tensor : tensors) writer.write(tensor.spec.name, tensor.bytes);
  writer.close();
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  try {
    if (argc != 4)
      jackscrew::fail(jackscrew::ErrorKind::usage, "nf4_file FROM TO nf4|nf4_double|f32");
    jackscrew::run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nf4_file: {}\n", error.what());
    return 1;
  }
}
