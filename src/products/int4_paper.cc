#include "products/int4_paper.h"

#include <algorithm>
#include <bit>
#include <string>

#include "kernels/rows/loss.rows.h"
#include "products/dense.h"
#include "products/int4.h"
#include "products/int4_paper.rows.h"
#include "products/int4_split.rows.h"
#include "products/rounded.h"
#include "products/weight_panels.h"

namespace jackscrew {

namespace {

// The largest block by default, as in the paper.
constexpr int64_t kPaperBlock = 32;

// What parameters() lists, in its order.
enum ParameterIndex : size_t { kStepOfW, kStepOfX, kBlockErrors };

// The tensors of Gradient::kept: scalars, the codes of dy i8 [2, tokens, out] with the sums of
// squares of their rows f64 [2, tokens], and the gradient of the transformed x f32 [tokens, in].
enum KeptTensor : size_t { kScalars, kCodes, kSquares, kGradientOfX, kKeptTensors };

// The scalars: the steps of W and of x, and the value of one low bin of dy.
enum ScalarSlot : int64_t { kScalarW, kScalarX, kScalarUnit, kScalarCount };

class Int4PaperProduct : public RoundedProduct {
 public:
  explicit Int4PaperProduct(const Int4PaperOptions& options) : options_(options) {}

  const char* name() const override { return "int4"; }
  DType operand_dtype() const override { return DType::f32; }

  const Product& product_of(const WeightSpec& weight) const override {
    return weight.is_block_matrix() ? static_cast<const Product&>(*this) : f32_product();
  }

  void check(std::span<const WeightSpec> weights,
             const std::vector<std::string>& excluded) const override {
    check_hadamard_block(name(), options_.block, kPaperBlock, weights, excluded);
  }

  std::vector<WeightSpec> parameters(const WeightSpec& weight) const override {
    const std::string base = weight.name.substr(0, weight.name.rfind(".weight"));
    const auto vector = [&](const char* what, int64_t size, double learning_rate) {
      return WeightSpec{base + what,   1,   size, WeightKind::product, weight.layer, weight.module,
                        learning_rate, true};
    };
    std::vector<WeightSpec> all;
    if (!options_.learns_steps && !options_.searches_block) return all;
    const double rate = options_.step_learning_rate;
    all.push_back(vector(".int4_step_of_weight", 1, rate));
    all.push_back(vector(".int4_step_of_input", 1, rate));
    if (options_.searches_block) {
      all.push_back(vector(".int4_block_errors", candidates_of(weight.cols), rate));
    }
    return all;
  }

  const char* settings_without_parameters() const override {
    return "int4_steps=dynamic and no int4_block=search";
  }

  OptionOfDw option_of_dw_alone() const override {
    if (!options_.samples_dw || options_.samples_dx) return {};
    return {"int4_sampling", "set int4_sampling=off"};
  }

  // Zero: no step has been learned, no error is known.
  void initialise(Context& context, const LinearUse& use) const override {
    for (const Weight* parameter : use.product_parameters) {
      context.ops.zero(parameter->as_f32());
    }
  }

  Operand prepare(Context&, const Tensor& x) const override { return {x}; }

  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const LinearUse& use) const override {
    Gradient g(context, *this, use.weight);
    g.x = a.x;
    g.dy = dy;
    g.product_parameters = use.product_parameters;
    if (is_single_token(a.x)) return g;
    g.kept.resize(kKeptTensors);
    g.kept[kScalars] = steps_of({context, use.weight, a.x, use.product_parameters});
    if (options_.split_limit > 0) split(g);
    // Both the step of x and the layers below need the gradient of x.
    g.kept[kGradientOfX] = gradient_of_x(g);
    return g;
  }

  void add_parameter_gradient(const Gradient& g, size_t place, const Tensor& d) const override {
    if (is_single_token(g.x) || place == kBlockErrors || !options_.learns_steps) return;
    Context& context = g.context();
    const Use of = use_of(g);
    const Arena::Frame frame(context.scratch);
    const bool of_w = place == kStepOfW;
    const int64_t rows = of_w ? g.weight().rows() : g.x.rows();
    const ScalarSlot step = of_w ? kScalarW : kScalarX;
    const Tensor sums = context.scratch.tensor(DType::f64, {rows});
    const auto add = [&](const Tensor& gradient, const Tensor& from, int64_t begin) {
      context.ops.launch(
          StepGradientOfRows{gradient.data<float>(), from.data<float>(), at(g.kept[kScalars], step),
                             sums.columns(begin, rows).data<double>(), choice_of(of), from.cols(),
                             from.row_stride()},
          from.rows());
    };
    if (of_w) {
      for_gradient_of_w(g, [&](const Tensor& gradient, const Tensor& w, int64_t begin, int64_t) {
        add(gradient, w, begin);
      });
    } else {
      add(g.kept[kGradientOfX], g.x, 0);
    }
    context.ops.launch(AddStepGradient{sums.data<double>(), d.data<float>(), unit_of(g, step),
                                       step_of(of, place), rows, rows * g.x.cols()},
                       1);
  }

  void add_parameter_start(const Gradient& g, size_t place, const Tensor& d) const override {
    if (is_single_token(g.x)) return;
    const Use of = use_of(g);
    if (place == kBlockErrors) {
      add_block_errors(of, d);
    } else if (options_.learns_steps) {
      g.context().ops.launch(
          AddStepStart{at(g.kept[kScalars], place == kStepOfW ? kScalarW : kScalarX),
                       d.data<float>(), step_of(of, place), static_cast<float>(g.x.rows())},
          1);
    }
  }

 private:
  void rounded_forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
                       Accumulate accumulate) const override {
    const Arena::Frame frame(context.scratch);
    const Use of{context, use.weight, a.x, use.product_parameters};
    const Tensor steps = steps_of(of);
    const int64_t groups = ceil_div(a.x.cols(), kInt8Group);
    const Int8Rows x{context.scratch.tensor(DType::i8, {a.x.rows(), a.x.cols()}),
                     context.scratch.tensor(DType::f32, {a.x.rows(), groups})};
    quantize(of, a.x, steps, kScalarX,
             {.codes = x.codes.data<int8_t>(), .scales = x.scales.data<float>(), .copies = groups});
    for_panels(of, [&](const Tensor& values, int64_t begin, int64_t end) {
      const Arena::Frame panel_frame(context.scratch);
      const Int8Rows w{context.scratch.tensor(DType::i8, {values.rows(), values.cols()}),
                       context.scratch.tensor(DType::f32, {values.rows()})};
      // W's scale is the product of both steps, so that sums of x's codes stay integers.
      quantize(of, values, steps, kScalarW,
               {.other = at(steps, kScalarX),
                .codes = w.codes.data<int8_t>(),
                .scales = w.scales.data<float>(),
                .copies = 1});
      context.ops.gemm_int8(x, w, Transpose::yes, y.columns(begin, end), accumulate,
                            context.scratch);
    });
  }

  void rounded_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    const Arena::Frame frame(g.context().scratch);
    rotate_back(g, g.kept[kGradientOfX], g.x, kScalarX, dx, accumulate);
  }

  void rounded_dw(const Gradient& g, const Tensor& d) const override {
    for_gradient_of_w(g, [&](const Tensor& gradient, const Tensor& w, int64_t begin, int64_t end) {
      rotate_back(g, gradient, w, kScalarW, d.rows(begin, end), Accumulate::yes);
    });
  }

  // Of the gradient that add_dw() adds, panel by panel: what was clipped has none in a projection
  // either.
  void rounded_left(const Gradient& g, const Tensor& p, const Tensor& r) const override {
    for_gradient_of_w(g, [&](const Tensor& gradient, const Tensor& w, int64_t begin, int64_t end) {
      const Tensor panel = turned_back(g, gradient, w);
      g.context().ops.gemm(panel, Transpose::yes, p.rows(begin, end), Transpose::no, r,
                           Accumulate::yes);
    });
  }

  void rounded_right(const Gradient& g, const Tensor& q, const Tensor& r) const override {
    for_gradient_of_w(g, [&](const Tensor& gradient, const Tensor& w, int64_t begin, int64_t end) {
      const Tensor panel = turned_back(g, gradient, w);
      g.context().ops.gemm(panel, Transpose::no, q, Transpose::no, r.rows(begin, end),
                           Accumulate::yes);
    });
  }

  // A weight and its input.
  struct Use {
    Context& context;
    const Weight& weight;
    Tensor x;
    std::span<const Weight* const> product_parameters;
  };
  // The outputs of QuantizeToStep.
  struct Codes {
    const float* other = nullptr;
    int8_t* codes = nullptr;
    float* values = nullptr;
    float* scales = nullptr;
    double* squares = nullptr;
    int64_t copies = 0;
  };

  static Use use_of(const Gradient& g) {
    return {g.context(), g.weight(), g.x, g.product_parameters};
  }
  static float* at(const Tensor& kept, ScalarSlot place) {
    return kept.columns(place, place + 1).data<float>();
  }

  static int64_t candidates_of(int64_t width) {
    const int64_t widest = largest_hadamard_block(width, kHadamardBlock);
    return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(widest)));
  }
  BlockChoice choice_of(const Use& of) const {
    const int64_t width = of.weight.cols();
    const int64_t fixed =
        options_.block > 0 ? options_.block : largest_hadamard_block(width, kPaperBlock);
    if (of.product_parameters.size() <= kBlockErrors) return {fixed, nullptr, 0};
    return {fixed, of.product_parameters[kBlockErrors]->as_f32().data<float>(),
            candidates_of(width)};
  }
  StepChoice step_of(const Use& of, size_t place) const {
    const bool learned = options_.learns_steps && of.product_parameters.size() > place;
    return {learned ? of.product_parameters[place]->as_f32().data<float>() : nullptr,
            of.context.scalars, options_.cold_steps, of.context.training};
  }
  // Cold in a run's first step only.
  static StepChoice first_step(const Use& of) {
    return {nullptr, of.context.scalars, 1, of.context.training, true};
  }

  // Calls body(values, begin, end) for rows of the weight in f32.
  template <class Body>
  static void for_panels(const Use& of, const Body& body) {
    const Arena::Frame frame(of.context.scratch);
    const int64_t rows = of.weight.rows();
    const int64_t step =
        panel_rows_of(of.weight, of.context.ops.panel_bytes(), dtype_size(DType::f32));
    const Tensor decoded = decoded_panel(of.context, of.weight, step);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(rows, begin + step);
      body(values_of(of.context, of.weight, begin, end, decoded), begin, end);
    }
  }

  // f32 [kScalarCount] with the steps of W and of x, in context.scratch.
  Tensor steps_of(const Use& of) const {
    Context& context = of.context;
    const Tensor kept = context.scratch.tensor(DType::f32, {kScalarCount});
    const Arena::Frame frame(context.scratch);
    const BlockChoice choice = choice_of(of);
    const int64_t rows = std::max(of.weight.rows(), of.x.rows());
    const Tensor sums = context.scratch.tensor(DType::f64, {rows});
    const auto measure = [&](const Tensor& from, int64_t begin, const StepChoice& step) {
      context.ops.launch(
          RotatedMagnitudes{from.data<float>(), sums.columns(begin, rows).data<double>(), step,
                            choice, from.cols(), from.row_stride()},
          from.rows());
    };
    const auto settle = [&](ScalarSlot place, int64_t count, const StepChoice& step) {
      context.ops.launch(
          SettleStep{sums.data<double>(), at(kept, place), step, count, count * of.x.cols()}, 1);
    };
    const StepChoice of_w = step_of(of, kStepOfW);
    for_panels(of,
               [&](const Tensor& values, int64_t begin, int64_t) { measure(values, begin, of_w); });
    settle(kScalarW, of.weight.rows(), of_w);
    const StepChoice of_x = step_of(of, kStepOfX);
    measure(of.x, 0, of_x);
    settle(kScalarX, of.x.rows(), of_x);
    return kept;
  }

  void quantize(const Use& of, const Tensor& from, const Tensor& kept, ScalarSlot step,
                const Codes& to) const {
    of.context.ops.launch(
        QuantizeToStep{from.data<float>(), at(kept, step), to.other, to.codes, to.values, to.scales,
                       to.squares, choice_of(of), from.cols(), from.row_stride(), to.copies},
        from.rows());
  }

  // The unit of the gradient of the operand whose step is `step`.
  ProductUnit unit_of(const Gradient& g, ScalarSlot step) const {
    return {at(g.kept[kScalars], step == kScalarW ? kScalarX : kScalarW),
            options_.split_limit > 0 ? at(g.kept[kScalars], kScalarUnit) : nullptr};
  }

  void rotate_back(const Gradient& g, const Tensor& gradient, const Tensor& from, ScalarSlot step,
                   const Tensor& to, Accumulate accumulate) const {
    g.context().ops.launch(
        RotateBackToStep{gradient.data<float>(), from.data<float>(), at(g.kept[kScalars], step),
                         to.data<float>(), unit_of(g, step), choice_of(use_of(g)), from.cols(),
                         from.row_stride(), to.row_stride(), accumulate == Accumulate::yes},
        from.rows());
  }
  // The gradient of rows w of the weight, turned back, in context.scratch.
  Tensor turned_back(const Gradient& g, const Tensor& gradient, const Tensor& w) const {
    const Tensor panel = g.context().scratch.tensor(DType::f32, {w.rows(), w.cols()});
    rotate_back(g, gradient, w, kScalarW, panel, Accumulate::no);
    return panel;
  }

  // Makes dy's unit, codes and squares, in context.scratch.
  void split(Gradient& g) const {
    Context& context = g.context();
    const int64_t tokens = g.dy.rows();
    g.kept[kCodes] = context.scratch.tensor(DType::i8, {2, tokens, g.dy.cols()});
    g.kept[kSquares] = context.scratch.tensor(DType::f64, {2, tokens});
    const Arena::Frame frame(context.scratch);
    const Tensor maxima = context.scratch.tensor(DType::f32, {tokens});
    float* const unit = at(g.kept[kScalars], kScalarUnit);
    context.ops.launch(
        LargestOfRows{g.dy.data<float>(), maxima.data<float>(), g.dy.cols(), g.dy.row_stride()},
        tokens);
    context.ops.launch(UnitOfSplit{maxima.data<float>(), unit, tokens}, 1);
    context.ops.launch(
        SplitRows{g.dy.data<float>(), unit, g.kept[kCodes].data<int8_t>(),
                  g.kept[kSquares].data<double>(), context.scalars, context.rows, tokens,
                  g.dy.cols(), g.dy.row_stride(), name_hash((g.weight().name() + " split").c_str()),
                  static_cast<float>(options_.split_limit)},
        tokens);
  }

  // dy as it enters a product, f32 [tokens, out], in the scratch of g.context(). `squares` f64
  // [tokens] are the sums of squares of the other operand's rows; empty: there is none.
  Tensor split_gradient(const Gradient& g, bool samples, const Tensor& squares,
                        const char* purpose) const {
    if (options_.split_limit == 0) return g.dy;
    Context& context = g.context();
    const int64_t tokens = g.dy.rows();
    const Tensor out = context.scratch.tensor(DType::f32, {tokens, g.dy.cols()});
    const Arena::Frame frame(context.scratch);
    Tensor probabilities;
    if (samples) {
      probabilities = context.scratch.tensor(DType::f32, {2, tokens});
      context.ops.launch(LeverageProbabilities{g.kept[kSquares].data<double>(),
                                               squares.empty() ? nullptr : squares.data<double>(),
                                               probabilities.data<float>(), tokens},
                         1);
    }
    context.ops.launch(
        JoinSplit{g.kept[kCodes].data<int8_t>(), samples ? probabilities.data<float>() : nullptr,
                  out.data<float>(), context.scalars, context.rows, tokens, g.dy.cols(),
                  name_hash((g.weight().name() + purpose).c_str())},
        tokens);
    return out;
  }

  // The gradient of x as transformed and rounded, in units, f32 [tokens, in], in the scratch of
  // g.context().
  Tensor gradient_of_x(const Gradient& g) const {
    Context& context = g.context();
    const Tensor out = context.scratch.tensor(DType::f32, {g.x.rows(), g.x.cols()});
    const Arena::Frame frame(context.scratch);
    const Tensor dy = split_gradient(g, options_.samples_dx, {}, " sampled for dx");
    const Use of = use_of(g);
    Accumulate now = Accumulate::no;
    for_panels(of, [&](const Tensor& values, int64_t begin, int64_t end) {
      const Arena::Frame panel_frame(context.scratch);
      const Tensor w = context.scratch.tensor(DType::f32, {values.rows(), values.cols()});
      quantize(of, values, g.kept[kScalars], kScalarW, {.values = w.data<float>()});
      context.ops.gemm(dy.columns(begin, end), Transpose::no, w, Transpose::no, out, now);
      now = Accumulate::yes;
    });
    return out;
  }

  // Calls body(gradient, w, begin, end) for rows w of the weight in f32, with the gradient of w as
  // transformed and rounded, in units.
  template <class Body>
  void for_gradient_of_w(const Gradient& g, const Body& body) const {
    Context& context = g.context();
    const Arena::Frame frame(context.scratch);
    const Use of = use_of(g);
    const Tensor x = context.scratch.tensor(DType::f32, {g.x.rows(), g.x.cols()});
    const Tensor squares = context.scratch.tensor(DType::f64, {g.x.rows()});
    quantize(of, g.x, g.kept[kScalars], kScalarX,
             {.values = x.data<float>(), .squares = squares.data<double>()});
    const Tensor dy = split_gradient(g, options_.samples_dw, squares, " sampled for dW");
    for_panels(of, [&](const Tensor& values, int64_t begin, int64_t end) {
      const Arena::Frame panel_frame(context.scratch);
      const Tensor gradient = context.scratch.tensor(DType::f32, {values.rows(), values.cols()});
      context.ops.gemm(dy.columns(begin, end), Transpose::yes, x, Transpose::no, gradient,
                       Accumulate::no);
      body(gradient, values, begin, end);
    });
  }

  // Adds the errors of every block to d of add_parameter_start().
  void add_block_errors(const Use& of, const Tensor& d) const {
    Context& context = of.context;
    const Arena::Frame frame(context.scratch);
    const int64_t candidates = candidates_of(of.weight.cols());
    const StepChoice first = first_step(of);
    const int64_t width = of.weight.cols();
    const Tensor steps = context.scratch.tensor(DType::f32, {candidates});
    // The errors of one operand, f64 [candidates, rows]; for_rows calls its body with the rows.
    const auto errors_of = [&](int64_t rows, const auto& for_rows) {
      const Tensor sums = context.scratch.tensor(DType::f64, {candidates, rows});
      const auto of_row = [&](int64_t c, int64_t begin) {
        return sums.rows(c, c + 1).columns(begin, rows).data<double>();
      };
      const auto step = [&](int64_t c) { return steps.columns(c, c + 1).data<float>(); };
      for_rows([&](const Tensor& from, int64_t begin) {
        for (int64_t c = 0; c < candidates; ++c) {
          context.ops.launch(RotatedMagnitudes{from.data<float>(),
                                               of_row(c, begin),
                                               first,
                                               {int64_t{1} << c, nullptr, 0},
                                               width,
                                               from.row_stride()},
                             from.rows());
        }
      });
      for (int64_t c = 0; c < candidates; ++c) {
        context.ops.launch(SettleStep{of_row(c, 0), step(c), first, rows, rows * width}, 1);
      }
      for_rows([&](const Tensor& from, int64_t begin) {
        for (int64_t c = 0; c < candidates; ++c) {
          context.ops.launch(RoundingErrors{from.data<float>(), step(c), of_row(c, begin), first,
                                            int64_t{1} << c, width, from.row_stride()},
                             from.rows());
        }
      });
      return sums;
    };
    const Tensor of_w = errors_of(of.weight.rows(), [&](const auto& body) {
      for_panels(of, [&](const Tensor& values, int64_t begin, int64_t) { body(values, begin); });
    });
    const Tensor of_x = errors_of(of.x.rows(), [&](const auto& body) { body(of.x, 0); });
    context.ops.launch(
        AddBlockStart{of_w.data<double>(), of_x.data<double>(), d.data<float>(), first, candidates,
                      of.weight.rows(), of.x.rows(), width, static_cast<float>(of.x.rows())},
        candidates);
  }

  Int4PaperOptions options_;
};

}  // namespace

std::unique_ptr<const Product> make_int4_paper_product(const Int4PaperOptions& options) {
  return std::make_unique<Int4PaperProduct>(options);
}

}  // namespace jackscrew
