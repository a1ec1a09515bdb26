! One implicit Euler step of diffusion along many rods: the tridiagonal system
!
!     -left * next(i-1) + (1 + left + right) * next(i) - right * next(i+1) = now(i)
!
! where left and right are the squares of k(i) and k(i + 1); no heat leaves a rod at its ends. Solved by elimination and
! substitution (Thomas algorithm), rod by rod.
subroutine implicit_diffusion(rods, n, k, now, next) bind(c)
    use iso_c_binding, only: c_int, c_float
    implicit none
    integer(c_int), value :: rods, n
    real(c_float), intent(in) :: k(n + 1, rods), now(n, rods)
    real(c_float), intent(out) :: next(n, rods)
    real(c_float) :: factor(n), left, right, pivot
    integer :: rod, i

    do rod = 1, rods
        right = merge(k(2, rod)**2, 0.0, n > 1)
        factor(1) = right / (1.0 + right)
        next(1, rod) = now(1, rod) / (1.0 + right)
        do i = 2, n
            left = k(i, rod)**2
            right = merge(k(i + 1, rod)**2, 0.0, i < n)
            pivot = 1.0 + left + right - left * factor(i - 1)
            factor(i) = right / pivot
            next(i, rod) = (now(i, rod) + left * next(i - 1, rod)) / pivot
        end do
        do i = n - 1, 1, -1
            next(i, rod) = next(i, rod) + factor(i) * next(i + 1, rod)
        end do
    end do
end subroutine implicit_diffusion
