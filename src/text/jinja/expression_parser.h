// A recursive-descent parser for the expressions of templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/failure.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace jackscrew::jinja {

// One more level of the recursion of the parser or interpreter, until it is destroyed.
class Nesting {
 public:
  explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  virtual ~ExpressionParser() = default;

 protected:
  // Parses an expression, or a tuple of several separated by commas. `conditional`: an inline if is
  // allowed.
  ExpressionPtr parse_tuple(bool conditional = true, bool in_parentheses = false);
  ExpressionPtr parse_expression();
  ExpressionPtr parse_filters(ExpressionPtr subject);
  // Parses one filter, whose name comes next.
  ExpressionPtr parse_filter(ExpressionPtr subject);

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool take_if(std::string_view symbol);
  bool take_name_if(std::string_view name);
  void expect(std::string_view symbol);
  void expect(Token::Kind kind);
  std::string expect_name();
  [[noreturn]] void fail_here(const std::string& what) const;
  [[noreturn]] void fail_expected(std::string_view what) const;
  // Enters one more level of `depth` until the result is destroyed; fails here, naming `what`,
  // beyond `limit`.
  Nesting nest(int& depth, int limit, std::string_view what) const;

 private:
  // Called for every name that is read.
  virtual void note_load(const std::string& name) = 0;

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_test(ExpressionPtr subject);
  CallArguments parse_arguments();
  bool at_tuple_end() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace jackscrew::jinja
