#include "train/export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/checked.h"
#include "conversion/result_texts.h"
#include "formats/safetensors.h"
#include "quant/plain.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/output_dir.h"

namespace jackscrew {

namespace {

// Masters of weights that wait their turn, by the name of the weight. What learns all the time is
// exported as it is stored, which is what was evaluated.
using Masters = std::map<std::string, Tensor>;

Masters masters_of(const Session& session) {
  Masters masters;
  session.visit([&](const StateRef& state) {
    if (state.role == StateRole::master) masters[state.name] = state.view;
  });
  return masters;
}

// Weights in a format that safetensors has keep their type, all others become F32.
SafetensorsSpec weight_spec(const Weight& weight) {
  const Format& format = weight.stored_format();
  SafetensorsSpec spec{weight.name(),
                       &format == &bf16_format()  ? "BF16"
                       : &format == &f16_format() ? "F16"
                                                  : "F32",
                       {}};
  if (!weight.is_vector()) spec.shape.push_back(weight.rows());
  spec.shape.push_back(weight.cols());
  return spec;
}

template <class To>
void write_rows(ShardedSafetensorsWriter& writer, const std::string& name,
                const std::vector<float>& values, int64_t count) {
  std::vector<To> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = from_float<To>(values[i]);
  writer.write(name, {reinterpret_cast<const uint8_t*>(out.data()), out.size() * sizeof(To)});
}

// Rows [begin, end) as exactly as they are known.
void read_rows(Session& session, const Weight& weight, const Masters& masters, int64_t begin,
               int64_t end, std::vector<float>& values) {
  const Tensor out(values.data(), DType::f32, {end - begin, weight.cols()});
  const auto found = masters.find(weight.name());
  if (found == masters.end()) {
    session.read_weight(weight, begin, end, out);
    return;
  }
  const Tensor from = found->second.reshaped({weight.rows(), weight.cols()}).rows(begin, end);
  if (from.dtype() == DType::f32) {
    session.ops().copy(out, from);
    return;
  }
  std::vector<bf16> narrow_values(static_cast<size_t>(out.size()));
  session.ops().copy(Tensor(narrow_values.data(), DType::bf16, {out.rows(), out.cols()}), from);
  std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                 [](bf16 value) { return to_float(value); });
}

void write_weight(Session& session, const Weight& weight, const Masters& masters,
                  ShardedSafetensorsWriter& writer) {
  const Format& format = weight.stored_format();
  const int64_t step = std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
  std::vector<float> values(static_cast<size_t>(step * weight.cols()));
  for (int64_t begin = 0; begin < weight.rows(); begin += step) {
    const int64_t end = std::min(weight.rows(), begin + step);
    const int64_t count = (end - begin) * weight.cols();
    read_rows(session, weight, masters, begin, end, values);
    if (&format == &bf16_format()) {
      write_rows<bf16>(writer, weight.name(), values, count);
    } else if (&format == &f16_format()) {
      write_rows<f16>(writer, weight.name(), values, count);
    } else {
      write_rows<float>(writer, weight.name(), values, count);
    }
  }
}

std::vector<SafetensorsSpec> weight_specs(const Stage& stage) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& parameter : stage.parameters()) {
    specs.push_back(weight_spec(*parameter->weight));
  }
  return specs;
}

void export_model(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& to) {
  std::vector<SafetensorsSpec> specs = weight_specs(session.stage());
  write_texts(config_texts(files, tokenizer, format, torch_dtype(specs)), to);
  ShardedSafetensorsWriter writer(to, std::move(specs));
  const Masters masters = masters_of(session);
  for (const auto& parameter : session.stage().parameters()) {
    write_weight(session, *parameter->weight, masters, writer);
  }
  writer.close();
}

// What an earlier result has and this one does not would be read as a part of it.
void remove_others(const fs::path& result, const fs::path& from) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (is_result_file(name.string()) && entry.is_regular_file() && !fs::exists(result / name)) {
      others.push_back(entry.path());
    }
  }
  for (const char* name : {kDefaultTemplateFile, kToolTemplateFile}) {
    if (!fs::exists(result / name)) others.push_back(from / name);
  }
  for (const fs::path& path : others) fs::remove(path);
}

// Moves the files of a finished directory into place, the weights last: whoever sees them sees a
// model.
void move_files(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (entry.is_regular_file()) paths.push_back(fs::relative(entry.path(), from));
  }
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.extension() == ".safetensors", a) <
           std::pair(b.extension() == ".safetensors", b);
  });
  std::error_code error;
  for (const fs::path& path : paths) {
    fs::create_directories((to / path).parent_path(), error);
    fs::rename(from / path, to / path, error);
    if (error) {
      throw Error(
          ErrorKind::generic,
          fmt::format("cannot move {} to {}: {}", path.string(), to.string(), error.message()),
          fmt::format("the result is whole in {}", from.string()));
    }
  }
  sync_directory(to);
  fs::remove_all(from, error);
}

}  // namespace

void export_result(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                   const ChatFormat& format, const fs::path& output_dir) {
  const fs::path beside = result_staging(output_dir);
  if (const nlohmann::json adapter = session.learner().adapter(); !adapter.is_null()) {
    export_adapter(session.stage(), session.ops(), adapter, files.origin, beside);
  } else {
    AtomicDirectory directory(beside);
    export_model(session, files, tokenizer, format, directory.path());
    directory.commit();
  }
  write_texts(tokenizer_texts(files, tokenizer, format), beside);
  remove_others(beside, output_dir);
  move_files(beside, output_dir);
}

int64_t result_bytes(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                     const ChatFormat& format) {
  const int64_t texts = bytes_of(tokenizer_texts(files, tokenizer, format));
  if (const nlohmann::json adapter = session.learner().adapter(); !adapter.is_null()) {
    return checked_add(texts, adapter_bytes(session.stage(), adapter, files.origin));
  }
  const std::vector<SafetensorsSpec> specs = weight_specs(session.stage());
  const int64_t configs = bytes_of(config_texts(files, tokenizer, format, torch_dtype(specs)));
  return checked_add(checked_add(texts, configs), ShardedSafetensorsWriter::bytes(specs));
}

}  // namespace jackscrew
