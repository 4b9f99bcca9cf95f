// How fast a tokenizer encodes on one thread.
//   tokenizer_bench tokenizer=DIRECTORY text=FILE [chunk=4096] [--clock=wall|cpu] [--json]
// The text is encoded in chunks of about that many bytes, cut at line ends; the fastest of three
// rounds counts. bench/tokenizer_bench.py runs this beside Hugging Face's library.
#include <fmt/format.h>

#include <limits>

#include "base/file.h"
#include "base/json_object.h"
#include "base/text.h"
#include "bench/machine.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {
namespace {

std::vector<std::string_view> chunks(std::string_view text, size_t size) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t line = text.find('\n', size);
    const size_t length = line == std::string_view::npos ? text.size() : line + 1;
    out.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return out;
}

int run(std::vector<std::string> arguments) {
  BenchClock clock = take_clock(arguments);
  clock.threads = 1;
  const bool json = std::erase(arguments, "--json") > 0;
  std::string directory, file;
  int64_t chunk = 4096;
  for (const std::string& argument : arguments) {
    const std::string_view value = std::string_view(argument).substr(argument.find('=') + 1);
    if (argument.starts_with("tokenizer=")) {
      directory = value;
    } else if (argument.starts_with("text=")) {
      file = value;
    } else if (argument.starts_with("chunk=") && parse_int(value)) {
      chunk = *parse_int(value);
    } else {
      fail(ErrorKind::usage, "unknown argument {}", argument);
    }
  }
  const double begin = clock.seconds();
  auto data = parse_tokenizer_texts(read_tokenizer_texts(directory), directory);
  if (!data) fail(ErrorKind::usage, "{} has no tokenizer", directory);
  const Tokenizer tokenizer(std::move(*data));
  const double load = clock.seconds() - begin;

  const std::string text = read_text(file);
  double best = std::numeric_limits<double>::infinity();
  size_t tokens = 0;
  for (int round = 0; round < 3; ++round) {
    tokens = 0;
    const double start = clock.seconds();
    for (const std::string_view part : chunks(text, static_cast<size_t>(chunk))) {
      tokens += tokenizer.encode(part, true).size();
    }
    best = std::min(best, clock.seconds() - start);
  }
  const double rate = static_cast<double>(text.size()) * 1e-6 / best;
  if (json) {
    JsonObject object;
    object.add("bytes", text.size())
        .add("tokens", tokens)
        .add("mb_per_second", rate)
        .add("load_seconds", load);
    fmt::print("{}\n", object.text());
  } else {
    fmt::print("{} bytes, {} tokens: {:.1f} MB/s ({} time); loaded in {:.2f} s\n", text.size(),
               tokens, rate, clock.name(), load);
  }
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("tokenizer_bench", [&] {
    return jackscrew::run({argv + 1, argv + argc});
  });
}
