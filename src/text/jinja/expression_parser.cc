#include "text/jinja/expression_parser.h"

#include <algorithm>

#include "text/jinja/tables.h"

namespace jackscrew::jinja {

namespace {

// Limit on nested expressions: parentheses, brackets, signs, `not` and `else`.
constexpr int kMaxNesting = 100;

template <typename Node>
ExpressionPtr make(int line, Node node) {
  return std::make_unique<Expression>(Expression{line, std::move(node)});
}

}  // namespace

Token ExpressionParser::take() {
  const Token token = current();
  if (token.kind != Token::Kind::end) ++at_;
  return token;
}

bool ExpressionParser::take_if(std::string_view symbol) {
  if (!current().is(symbol)) return false;
  ++at_;
  return true;
}

bool ExpressionParser::take_name_if(std::string_view name) {
  if (!current().is_name(name)) return false;
  ++at_;
  return true;
}

void ExpressionParser::fail_here(const std::string& what) const {
  throw SyntaxFailure(current().line, what);
}

void ExpressionParser::fail_expected(std::string_view what) const {
  fail_here(fmt::format("{} was expected, found {}", what, current().describe()));
}

Nesting ExpressionParser::nest(int& depth, int limit, std::string_view what) const {
  if (depth >= limit) fail_here(fmt::format("{}nested more than {} deep", what, limit));
  return Nesting(depth);
}

void ExpressionParser::expect(std::string_view symbol) {
  if (!take_if(symbol)) fail_expected(fmt::format("\"{}\"", symbol));
}

void ExpressionParser::expect(Token::Kind kind) {
  if (current().kind != kind) {
    Token expected;
    expected.kind = kind;
    fail_expected(expected.describe());
  }
  take();
}

std::string ExpressionParser::expect_name() {
  if (current().kind != Token::Kind::name) fail_expected("a name");
  return take().text;
}

bool ExpressionParser::at_tuple_end() const {
  const Token::Kind kind = current().kind;
  return kind == Token::Kind::print_end || kind == Token::Kind::block_end || current().is(")");
}

ExpressionPtr ExpressionParser::parse_tuple(bool conditional, bool in_parentheses) {
  const int line = current().line;
  Expressions items;
  bool is_tuple = false;
  while (!at_tuple_end()) {
    items.push_back(conditional ? parse_expression() : parse_or());
    if (!current().is(",")) break;
    take();
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !in_parentheses) fail_expected("an expression");
  return make(line, TupleDisplay{std::move(items)});
}

ExpressionPtr ExpressionParser::parse_expression() {
  const Nesting nesting = nest(depth_, kMaxNesting, "");
  const int line = current().line;
  ExpressionPtr value = parse_or();
  while (take_name_if("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = take_name_if("else") ? parse_expression() : nullptr;
    value = make(line, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (current().is_name("or")) {
    const int line = take().line;
    left = make(line, Logical{false, std::move(left), parse_and()});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (current().is_name("and")) {
    const int line = take().line;
    left = make(line, Logical{true, std::move(left), parse_not()});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_comparison();
  const Nesting nesting = nest(depth_, kMaxNesting, "");
  const int line = take().line;
  return make(line, Unary{Unary::Operator::logical_not, parse_not()});
}

ExpressionPtr ExpressionParser::parse_comparison() {
  using Operator = Comparison::Operator;
  struct Sign {
    std::string_view text;
    Operator op;
  };
  constexpr Sign kSigns[] = {{"==", Operator::equal},  {"!=", Operator::not_equal},
                             {"<", Operator::less},    {"<=", Operator::less_equal},
                             {">", Operator::greater}, {">=", Operator::greater_equal}};
  const int line = current().line;
  ExpressionPtr first = parse_sum();
  std::vector<std::pair<Operator, ExpressionPtr>> rest;
  while (true) {
    const auto sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                   [&](const Sign& s) { return current().is(s.text); });
    if (sign != std::end(kSigns)) {
      take();
      rest.emplace_back(sign->op, parse_sum());
    } else if (take_name_if("in")) {
      rest.emplace_back(Operator::in, parse_sum());
    } else if (current().is_name("not") && ahead().is_name("in")) {
      take();
      take();
      rest.emplace_back(Operator::not_in, parse_sum());
    } else {
      break;
    }
  }
  if (rest.empty()) return first;
  return make(line, Comparison{std::move(first), std::move(rest)});
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (current().is("+") || current().is("-")) {
    const Token sign = take();
    const auto op = sign.text == "+" ? Binary::Operator::add : Binary::Operator::subtract;
    left = make(sign.line, Binary{op, std::move(left), parse_concatenation()});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = current().line;
  Expressions parts;
  parts.push_back(parse_product());
  while (take_if("~")) parts.push_back(parse_product());
  if (parts.size() == 1) return std::move(parts.front());
  return make(line, Concatenation{std::move(parts)});
}

ExpressionPtr ExpressionParser::parse_product() {
  const auto op_of = [](const Token& token) {
    return token.is("*")    ? Binary::Operator::multiply
           : token.is("/")  ? Binary::Operator::divide
           : token.is("//") ? Binary::Operator::floor_divide
                            : Binary::Operator::modulo;
  };
  ExpressionPtr left = parse_power();
  while (current().is("*") || current().is("/") || current().is("//") || current().is("%")) {
    const Token sign = take();
    left = make(sign.line, Binary{op_of(sign), std::move(left), parse_power()});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (current().is("**")) {
    const int line = take().line;
    left = make(line, Binary{Binary::Operator::power, std::move(left), parse_unary()});
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting = nest(depth_, kMaxNesting, "");
  ExpressionPtr value;
  if (current().is("-") || current().is("+")) {
    const Token sign = take();
    const auto op = sign.text == "-" ? Unary::Operator::minus : Unary::Operator::plus;
    value = make(sign.line, Unary{op, parse_unary(false)});
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  while (with_filters) {
    if (current().is("|")) {
      value = parse_filters(std::move(value));
    } else if (current().is_name("is")) {
      value = parse_test(std::move(value));
    } else if (current().is("(")) {
      const int line = current().line;
      value = make(line, Call{std::move(value), parse_arguments()});
    } else {
      break;
    }
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_primary() {
  const int line = current().line;
  switch (current().kind) {
    case Token::Kind::name:
      return parse_name();
    case Token::Kind::string: {
      std::string text;
      while (current().kind == Token::Kind::string) text += take().text;
      return make(line, Constant{Value::text(std::move(text), kTemplate)});
    }
    case Token::Kind::integer:
      return make(line, Constant{take().integer});
    case Token::Kind::floating:
      return make(line, Constant{take().floating});
    default:
      break;
  }
  if (take_if("(")) {
    ExpressionPtr value = parse_tuple(true, true);
    expect(")");
    return value;
  }
  if (current().is("[")) return parse_list();
  if (current().is("{")) return parse_dict();
  fail_expected("an expression");
}

ExpressionPtr ExpressionParser::parse_name() {
  const Token token = take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make(token.line, Constant{true});
  if (name == "false" || name == "False") return make(token.line, Constant{false});
  if (name == "none" || name == "None") return make(token.line, Constant{None{}});
  for (const char* unsupported : {"self", "super", "varargs", "kwargs"}) {
    if (name == unsupported) {
      throw SyntaxFailure(token.line, fmt::format("the name \"{}\" is not supported", name));
    }
  }
  note_load(name);
  return make(token.line, Name{name});
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = take().line;
  Expressions items;
  while (!current().is("]")) {
    items.push_back(parse_expression());
    if (!take_if(",")) break;
  }
  expect("]");
  return make(line, ListDisplay{std::move(items)});
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = take().line;
  DictDisplay dict;
  while (!current().is("}")) {
    ExpressionPtr key = parse_expression();
    expect(":");
    dict.items.emplace_back(std::move(key), parse_expression());
    if (!take_if(",")) break;
  }
  expect("}");
  return make(line, std::move(dict));
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    const int line = current().line;
    if (take_if(".")) {
      if (current().kind == Token::Kind::integer) {
        ExpressionPtr key = make(line, Constant{take().integer});
        value = make(line, Item{std::move(value), std::move(key)});
      } else {
        value = make(line, Attribute{std::move(value), expect_name()});
      }
    } else if (current().is("[")) {
      value = parse_subscript(std::move(value));
    } else if (current().is("(")) {
      value = make(line, Call{std::move(value), parse_arguments()});
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  const int line = take().line;
  const auto part = [&]() -> ExpressionPtr {
    return current().is(":") || current().is("]") ? nullptr : parse_expression();
  };
  ExpressionPtr begin = part();
  if (!take_if(":")) {
    if (begin == nullptr) fail_expected("an expression");
    if (current().is(",")) fail_here("several keys in one subscript are not supported");
    expect("]");
    return make(line, Item{std::move(object), std::move(begin)});
  }
  ExpressionPtr end = part();
  ExpressionPtr step = take_if(":") ? part() : nullptr;
  expect("]");
  return make(line, Slice{std::move(object), std::move(begin), std::move(end), std::move(step)});
}

CallArguments ExpressionParser::parse_arguments() {
  expect("(");
  CallArguments arguments;
  while (!current().is(")")) {
    if (current().is("*") || current().is("**")) {
      fail_here(fmt::format("\"{}\" in a call is not supported", current().text));
    }
    if (current().kind == Token::Kind::name && ahead().is("=")) {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else if (!arguments.named.empty()) {
      fail_here("an argument without a name behind one with a name");
    } else {
      arguments.positional.push_back(parse_expression());
    }
    if (!take_if(",")) break;
  }
  expect(")");
  return arguments;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr subject) {
  while (take_if("|")) subject = parse_filter(std::move(subject));
  return subject;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr subject) {
  const int line = current().line;
  const Token token = current();
  const std::string name = expect_name();
  const Filter* filter = find_filter(name);
  if (filter == nullptr) throw SyntaxFailure(token.line, unknown_filter(name));
  CallArguments arguments;
  if (current().is("(")) arguments = parse_arguments();
  return make(line, FilterUse{std::move(subject), filter, std::move(arguments)});
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr subject) {
  const int line = take().line;
  const bool negated = take_name_if("not");
  const std::string name = expect_name();
  const Test* test = find_test(name);
  if (test == nullptr) throw SyntaxFailure(line, unknown_test(name));
  CallArguments arguments;
  const Token& next = current();
  const bool is_operand = next.kind == Token::Kind::string || next.kind == Token::Kind::integer ||
                          next.kind == Token::Kind::floating || next.is("[") || next.is("{");
  const bool is_name = next.kind == Token::Kind::name && !next.is_name("else") &&
                       !next.is_name("or") && !next.is_name("and");
  if (next.is("(")) {
    arguments = parse_arguments();
  } else if (next.is_name("is")) {
    fail_here("a test of a test (\"is\" behind \"is\")");
  } else if (is_operand || is_name) {
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  ExpressionPtr value = make(line, TestUse{std::move(subject), test, std::move(arguments)});
  if (!negated) return value;
  return make(line, Unary{Unary::Operator::logical_not, std::move(value)});
}

}  // namespace jackscrew::jinja
