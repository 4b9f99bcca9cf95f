#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/failure.h"

namespace jackscrew::jinja {

namespace {

using Op = Binary::Operator;

std::string_view sign_of(Op op) {
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSigns[static_cast<size_t>(op)];
}

double as_double(const Value& number) {
  const auto integer = number.as_integer();
  return integer ? static_cast<double>(*integer) : *number.as_float();
}

void check_divisor(bool zero, Op op) {
  if (zero) fail("{} by zero", sign_of(op));
}

int64_t floor_quotient(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    check_divisor(base == 0, Op::power);
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  // With any other base every factor at least doubles the result, which soon overflows.
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return int64_t{exponent % 2 == 0 ? 1 : -1};
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result))
      fail("{} ** {} is too large", base, exponent);
  }
  return result;
}

Value integers(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::divide:
      check_divisor(b == 0, op);
      return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    case Op::floor_divide:
    case Op::modulo:
      check_divisor(b == 0, op);
      if (b == -1) return integers(Op::multiply, a, op == Op::modulo ? 0 : -1);
      result = floor_quotient(a, b);
      if (op == Op::modulo) result = a - result * b;
      break;
    case Op::power:
      return power(a, b);
  }
  if (overflow) fail("{} {} {} is too large", a, sign_of(op), b);
  return result;
}

Value floats(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::subtract:
      return a - b;
    case Op::multiply:
      return a * b;
    case Op::divide:
      check_divisor(b == 0.0, op);
      return a / b;
    case Op::floor_divide:
    case Op::modulo: {
      check_divisor(b == 0.0, op);
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0.0 && (rest < 0.0) != (b < 0.0)) {
        rest += b;
        quotient -= 1.0;
      }
      if (op == Op::modulo) return rest == 0.0 ? std::copysign(0.0, b) : rest;
      return quotient == 0.0                         ? std::copysign(0.0, a / b)
             : quotient - std::floor(quotient) > 0.5 ? std::floor(quotient) + 1.0
                                                     : std::floor(quotient);
    }
    case Op::power:
      check_divisor(a == 0.0 && b < 0.0, op);
      if (a < 0.0 && b != std::floor(b)) fail("a root of a negative number");
      return std::pow(a, b);
  }
  return Value();
}

Value repeat(const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const Text* text = value.as_text()) {
    if (!text->empty() && count > Text::kMaxBytes / text->size()) Text::fail_too_long();
    Text out;
    if (text->empty()) return out;
    Text block = *text;  // 1, 2, 4 ... copies of the text
    for (size_t left = count; left > 0; left /= 2) {
      if (left % 2 == 1) out.append(block);
      if (left > 1) block.append(Text(block));
    }
    return out;
  }
  const Sequence& sequence = *value.as_sequence();
  if (!sequence.items.empty() && count > kMaxItems / sequence.items.size()) {
    fail_too_many_items();
  }
  Values items;
  for (size_t i = 0; i < count && !sequence.items.empty(); ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return Value::sequence(sequence.kind, std::move(items));
}

// True for lists and tuples, false for ranges and views.
bool is_joinable(const Value& value) {
  const Sequence* sequence = value.as_sequence();
  return sequence != nullptr &&
         (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple);
}

std::optional<Value> join(const Value& left, const Value& right) {
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    Text text = *left.as_text();
    text.append(*right.as_text());
    return text;
  }
  if (!is_joinable(left) || !is_joinable(right)) return std::nullopt;
  if (left.as_sequence()->kind != right.as_sequence()->kind) return std::nullopt;
  Values items = left.as_sequence()->items;
  const Values& more = right.as_sequence()->items;
  items.insert(items.end(), more.begin(), more.end());
  return Value::sequence(left.as_sequence()->kind, std::move(items));
}

}  // namespace

Value apply(Unary::Operator op, const Value& operand) {
  if (op == Unary::Operator::logical_not) return !operand.truth();
  operand.defined();
  if (!operand.is_number()) fail("a sign before a {}", operand.type_name());
  const auto integer = operand.as_integer();
  if (!integer) return op == Unary::Operator::plus ? *operand.as_float() : -*operand.as_float();
  return op == Unary::Operator::plus ? Value(*integer) : integers(Op::subtract, 0, *integer);
}

Value apply(Op op, const Value& left, const Value& right) {
  left.defined();
  right.defined();
  const auto a = left.as_integer();
  const auto b = right.as_integer();
  if (a && b) return integers(op, *a, *b);
  if (left.is_number() && right.is_number()) return floats(op, as_double(left), as_double(right));
  if (op == Op::add) {
    if (auto joined = join(left, right)) return std::move(*joined);
  }
  if (op == Op::multiply) {
    const auto repeatable = [](const Value& v) { return v.as_text() != nullptr || is_joinable(v); };
    if (repeatable(left) && b) return repeat(left, *b);
    if (repeatable(right) && a) return repeat(right, *a);
  }
  fail("{} between {} and {}", sign_of(op), left.type_name(), right.type_name());
}

bool apply(Comparison::Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Comparison::Operator::equal:
      return equal(left, right);
    case Comparison::Operator::not_equal:
      return !equal(left, right);
    case Comparison::Operator::less:
      return compare(left, right, "<").value_or(0) < 0;
    case Comparison::Operator::less_equal:
      return compare(left, right, "<=").value_or(1) <= 0;
    case Comparison::Operator::greater:
      return compare(left, right, ">").value_or(0) > 0;
    case Comparison::Operator::greater_equal:
      return compare(left, right, ">=").value_or(-1) >= 0;
    case Comparison::Operator::in:
      return contains(right, left);
    case Comparison::Operator::not_in:
      return !contains(right, left);
  }
  return false;
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = container.as_text()) {
    if (item.as_text() == nullptr) fail("a {} in a str", item.type_name());
    return find_text(text->view(), item.as_text()->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    if (!item.hashable()) fail("a {} in a dict", item.type_name());
    return dict->find(item) != nullptr;
  }
  const Iterator next = iterate(container);
  while (const auto other = next()) {
    if (equal(*other, item)) return true;
  }
  return false;
}

}  // namespace jackscrew::jinja
