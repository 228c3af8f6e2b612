// Drives PyTorch's own CUDA caching allocator from stdin, one command a line, and answers one JSON line each.
//   m ID BYTES STREAM   f ID   e (empty_cache)   F FRACTION   S (snapshot)
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <unordered_map>

using namespace c10::cuda::CUDACachingAllocator;

static std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

static void print_snapshot(CUDAAllocator* a) {
  const char* comma = "";
  printf("[");
  auto snapshot = a->snapshot();
  for (auto& s : snapshot.segments) {
    printf("%s[%zu,%d,%d,[", comma, (size_t)s.stream, (int)s.is_large, (int)s.is_expandable);
    const char* inner = "";
    for (auto& b : s.blocks) {
      printf("%s[%zu,%zu,%d]", inner, b.size, b.requested_size, (int)b.allocated);
      inner = ",";
    }
    printf("]]");
    comma = ",";
  }
  printf("]\n");
}

int main() {
  auto* a = get();
  a->init(1);
  c10::cuda::detail::init_p2p_access_cache(1);
  std::unordered_map<long, void*> live;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string op, message;
    in >> op;
    if (op == "m") {
      long id, stream;
      size_t bytes;
      in >> id >> bytes >> stream;
      try {
        live[id] = a->raw_alloc_with_stream(bytes, (cudaStream_t)stream);
      } catch (const c10::OutOfMemoryError& e) {
        message = e.what_without_backtrace();
      }
    } else if (op == "f") {
      long id;
      in >> id;
      if (live.count(id)) a->raw_delete(live[id]);
      live.erase(id);
    } else if (op == "e") {
      a->emptyCache({0, 0});
    } else if (op == "F") {
      double fraction;
      in >> fraction;
      a->setMemoryFraction(fraction, 0);
    } else if (op == "S") {
      print_snapshot(a);
      continue;
    }
    auto s = a->getDeviceStats(0);
    printf("{\"stats\":[%ld,%ld,%ld,%ld,%ld,%ld,%ld,%ld,%ld],\"message\":%s}\n",
           (long)s.allocated_bytes[0].current, (long)s.reserved_bytes[0].current, (long)s.active_bytes[0].current,
           (long)s.inactive_split_bytes[0].current, (long)s.segment[0].current, (long)s.num_alloc_retries,
           (long)s.num_ooms, (long)s.num_device_alloc, (long)s.num_device_free, quoted(message).c_str());
  }
  fflush(stdout);
  _Exit(0);  // the stub has no device to shut down
}
