! Causal dilated convolution of each channel with its own filter: y at t sees x at t, t - dilation, t - 2 * dilation,
! ...; before the start x is zero. The last tap belongs to t itself.
subroutine dilated_conv(channels, length, taps, dilation, x, tap, y) bind(c)
    use iso_c_binding, only: c_int, c_float
    implicit none
    integer(c_int), value :: channels, length, taps, dilation
    real(c_float), intent(in) :: x(length, channels), tap(taps, channels)
    real(c_float), intent(out) :: y(length, channels)
    integer :: c, k, shift

    y = 0.0
    do c = 1, channels
        do k = 1, taps
            shift = (taps - k) * dilation
            if (shift < length) y(shift+1:, c) = y(shift+1:, c) + tap(k, c) * x(:length-shift, c)
        end do
    end do
end subroutine dilated_conv
