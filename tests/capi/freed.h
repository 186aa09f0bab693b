/* Checks of handles that were freed. */
#ifndef KVPACK_TESTS_CAPI_FREED_H
#define KVPACK_TESTS_CAPI_FREED_H

#include "check.h"

MAY_BE_UNUSED static int keeps_freed_handles(void) {
  return kvpack_has_feature("freed_handles");
}

/* Frees `handle` and expects `call`, which names it `freed`, to refuse it; freeing it again does nothing. */
#define FREED(type, handle, call, argument)                                                                 \
  do {                                                                                                      \
    type* volatile freed = (handle);                                                                        \
    CHECK(freed != NULL);                                                                                   \
    type##_free(freed);                                                                                     \
    EXPECT_REFUSED_WITH(call, KVPACK_ERR_BAD_HANDLE, "argument " argument " is no live handle of its type", \
                        "argument", argument);                                                              \
    type##_free(freed);                                                                                     \
  } while (0)

MAY_BE_UNUSED static kvpack_status append_nowhere(void* user, const uint8_t* data, uint64_t size) {
  (void)user, (void)data, (void)size;
  return KVPACK_OK;
}

#endif
