#include "train/result_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "quant/plain.h"

namespace jackscrew {

namespace {

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
void write_rows(const ByteSink& sink, const std::vector<float>& values, int64_t count) {
  std::vector<To> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = from_float<To>(values[i]);
  sink({reinterpret_cast<const uint8_t*>(out.data()), out.size() * sizeof(To)});
}

// The master of a weight that waits its turn. What learns all the time is exported as it is stored,
// which is what was evaluated.
std::optional<Tensor> master_of(const Session& session, const std::string& name) {
  std::optional<Tensor> master;
  session.visit([&](const StateRef& state) {
    if (state.role == StateRole::master && state.name == name) master = state.view;
  });
  return master;
}

// Rows [begin, end) as exactly as they are known.
void read_rows(Session& session, const Weight& weight, const std::optional<Tensor>& master,
               int64_t begin, int64_t end, std::vector<float>& values) {
  const Tensor out(values.data(), DType::f32, {end - begin, weight.cols()});
  if (!master) {
    session.read_weight(weight, begin, end, out);
    return;
  }
  const Tensor from = master->reshaped({weight.rows(), weight.cols()}).rows(begin, end);
  if (from.dtype() == DType::f32) {
    session.ops().copy(out, from);
    return;
  }
  std::vector<bf16> narrow_values(static_cast<size_t>(out.size()));
  session.ops().copy(Tensor(narrow_values.data(), DType::bf16, {out.rows(), out.cols()}), from);
  std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                 [](bf16 value) { return to_float(value); });
}

}  // namespace

nlohmann::json SessionResult::adapter() {
  return session_.learner().adapter();
}

std::vector<SafetensorsSpec> SessionResult::weights() {
  std::vector<SafetensorsSpec> specs;
  for (const auto& parameter : session_.stage().parameters()) {
    specs.push_back(weight_spec(*parameter->weight));
  }
  return specs;
}

void SessionResult::write_weight(const std::string& name, const ByteSink& sink) {
  const auto& parameters = session_.stage().parameters();
  const auto found = std::ranges::find_if(
      parameters, [&](const auto& parameter) { return parameter->weight->name() == name; });
  if (found == parameters.end()) fail(ErrorKind::generic, "no weight {} here", name);
  const Weight& weight = *(*found)->weight;
  const std::optional<Tensor> master = master_of(session_, name);
  const Format& format = weight.stored_format();
  const int64_t step = std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
  std::vector<float> values(static_cast<size_t>(step * weight.cols()));
  for (int64_t begin = 0; begin < weight.rows(); begin += step) {
    const int64_t end = std::min(weight.rows(), begin + step);
    const int64_t count = (end - begin) * weight.cols();
    read_rows(session_, weight, master, begin, end, values);
    if (&format == &bf16_format()) {
      write_rows<bf16>(sink, values, count);
    } else if (&format == &f16_format()) {
      write_rows<f16>(sink, values, count);
    } else {
      write_rows<float>(sink, values, count);
    }
  }
}

}  // namespace jackscrew
